"""The conversations of a rollout: what a policy read and said, as chat messages, each conversation as long as it got.

One where the history only grew, several where an agent read windows of it, branched or began anew. A turn whose
messages a later turn read on from is part of that one's conversation.
"""

from __future__ import annotations

import msgspec

from windrow.exports.base import Invalid
from windrow.records import Rollout, Turn

Path = tuple[int, ...]  # indexes of messages


class Conversation(msgspec.Struct, frozen=True):
    """`messages` are indexes into the rollout's; `sampled` those that are trained here and in no other."""

    messages: Path
    sampled: frozenset[int]


def conversations(rollout: Rollout) -> list[Conversation]:
    """In the order in which they ended; each ends with what the policy said. Raises Invalid for a turn that names
    messages which are not there."""
    open_paths: dict[Path, None] = {}
    for turn in rollout.turns:
        if turn.role == "agent" and turn.writes is not None:
            _check(turn, len(rollout.messages))
            read = _read(turn)
            continued = [path for path in open_paths if read[: len(path)] == path]
            if continued:
                del open_paths[max(continued, key=len)]
            open_paths[(*read, turn.writes)] = None
    untrained = {turn.writes for turn in rollout.turns if turn.role == "agent"}
    conversations_: list[Conversation] = []
    for path in open_paths:
        conversations_.append(Conversation(path, frozenset(path) & untrained))
        untrained -= conversations_[-1].sampled
    return conversations_


def _check(turn: Turn, count: int) -> None:
    """Before the ranges are laid out, which a damaged record may have made as long as it likes."""
    indexes = [index for bounds in turn.reads for index in bounds]
    if (
        turn.writes is None
        or not all(0 <= index <= count for index in indexes)
        or not 0 <= turn.writes < count
    ):
        raise Invalid("rollouts with a turn that names messages which are not there")


def _read(turn: Turn) -> Path:
    return tuple(number for start, stop in turn.reads for number in range(start, stop))
