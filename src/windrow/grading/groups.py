"""The groups of a call: each is open until the last of its slots is settled here, and then it is what there is of it.

A failed sample is tried again alone; what is there already is kept. A group of fewer samples than `min_group` asks
for is not given out: the next call fills it up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import msgspec

from windrow.records import Rollout, RolloutGroup
from windrow.store.folding import GRADABLE
from windrow.store.resume import ResumeState
from windrow.tasks.plan import Slot


class ClosedGroup(msgspec.Struct, frozen=True):
    """A group whose slots are all settled: its members, or None if they are too few; and those of this call."""

    group: RolloutGroup | None
    fresh: tuple[Rollout, ...]


class _OpenGroup(msgspec.Struct):
    left: int  # slots that this call has still to settle
    fresh: list[Rollout] = []


class GroupTracker:
    def __init__(self, resume_state: ResumeState, *, samples: int, min_group: float) -> None:
        self._resume_state = resume_state
        self._samples = samples
        self._least = least_members(samples, min_group)
        self._open: dict[str, _OpenGroup] = {}
        self.short = 0  # groups that were closed with too few members

    def touch(self, slot: Slot) -> None:
        """An attempt of this slot is on disk; called before the ledger counts it."""
        if slot.group not in self._open:
            first = slot.number - slot.sample
            pending = map(self._resume_state.ledger.is_pending, range(first, first + self._samples))
            self._open[slot.group] = _OpenGroup(sum(pending))

    def settle(self, slot: Slot, rollouts: Iterable[Rollout]) -> ClosedGroup | None:
        """The slot is not tried again in this call; the group, if this was the last one of it."""
        open_group = self._open[slot.group]
        open_group.fresh += rollouts
        open_group.left -= 1
        if open_group.left:
            return None
        del self._open[slot.group]
        return ClosedGroup(self._group(slot.group, open_group.fresh), tuple(open_group.fresh))

    def settled_before(self, group: str) -> RolloutGroup | None:
        """A group of earlier calls, if it has members enough."""
        return self._group(group, [])

    def rest(self) -> Iterator[Rollout]:
        """What this call has settled of groups that are still open."""
        for open_group in self._open.values():
            yield from open_group.fresh
        self._open.clear()

    def _group(self, group: str, fresh: list[Rollout]) -> RolloutGroup | None:
        now = {rollout.sample for rollout in fresh if rollout.status in GRADABLE}
        before = [rollout for rollout in self._resume_state.group_members(group) if rollout.sample not in now]
        members = [
            rollout for rollout in (*before, *fresh) if rollout.status in GRADABLE and not rollout.opponent
        ]
        if len({rollout.sample for rollout in members}) < self._least:
            self.short += 1
            return None
        members.sort(key=lambda rollout: (rollout.sample, rollout.seat or 0))
        return RolloutGroup(id=group, task=members[0].task, rollouts=tuple(members))


def least_members(samples: float, min_group: float) -> int:
    """How many of a group's samples must be there for it to be judged together."""
    return math.ceil(min_group * samples - 1e-9) if math.isfinite(samples) else 1
