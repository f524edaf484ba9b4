"""conflicts.jsonl: what could not stand in a merged run, since something else stands in its place.

It is read again by the next merge, so that the order in which runs are merged makes no difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from windrow.records import SCHEMA_VERSION
from windrow.store.merging.versions import SUPERSEDED, UNGROUNDED

CONFLICTS = "conflicts.jsonl"
LOGS = ("rollouts", "scores", "judgements", "tasks")


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a log, or all lines of an episode, as they were.

    `superseded`: a later verdict was given where it stood. `ungrounded`: a verdict on an attempt that does not stand.
    """

    v: int = SCHEMA_VERSION
    log: str
    superseded: bool = False
    ungrounded: bool = False
    lines: list[msgspec.Raw]

    @property
    def flags(self) -> int:
        return SUPERSEDED * self.superseded | UNGROUNDED * self.ungrounded


decode_conflict = msgspec.json.Decoder(Conflict).decode


def encode_conflict(log: str, flags: int, lines: Sequence[bytes]) -> bytes:
    found = Conflict(
        log=log,
        superseded=bool(flags & SUPERSEDED),
        ungrounded=bool(flags & UNGROUNDED),
        lines=[msgspec.Raw(line) for line in lines],
    )
    return msgspec.json.encode(found)
