"""conflicts.jsonl: the lines of the inputs that lost to another version of the same thing.

The next merge reads them again, so that the order in which runs are merged makes no difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from windrow.records import SCHEMA_VERSION
from windrow.store.merging.versions import SUPERSEDED, UNGROUNDED

CONFLICTS = "conflicts.jsonl"
LOGS = ("rollouts", "scores", "judgements", "tasks")


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a log, or all lines of an episode, unchanged.

    `superseded`: a later verdict replaced this one. `ungrounded`: a verdict on an attempt that is not in the merged log.
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
    conflict = Conflict(
        log=log,
        superseded=bool(flags & SUPERSEDED),
        ungrounded=bool(flags & UNGROUNDED),
        lines=[msgspec.Raw(line) for line in lines],
    )
    return msgspec.json.encode(conflict)
