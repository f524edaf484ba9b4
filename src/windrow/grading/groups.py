"""The groups of a call: a group is open until the last of its slots is settled in this call, and then it closes.

A failed sample is retried alone, and the group's other members stay. A group with fewer samples than `min_group`
requires is not delivered: the next call completes it.
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
    """A group with all slots settled: the group, or None if it has too few members; and the rollouts of this call."""

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
        """Note that an attempt of this slot is on disk; call this before the ledger counts it."""
        if slot.group not in self._open:
            first = slot.number - slot.sample
            pending = map(self._resume_state.ledger.is_pending, range(first, first + self._samples))
            self._open[slot.group] = _OpenGroup(sum(pending))

    def settle(self, slot: Slot, rollouts: Iterable[Rollout]) -> ClosedGroup | None:
        """Note that the slot is not retried in this call; return the closed group if this was its last slot."""
        open_group = self._open[slot.group]
        open_group.fresh += rollouts
        open_group.left -= 1
        if open_group.left:
            return None
        del self._open[slot.group]
        return ClosedGroup(self._group(slot.group, open_group.fresh), tuple(open_group.fresh))

    def settled_before(self, group: str) -> RolloutGroup | None:
        """Return a group of earlier calls, if it has enough members."""
        return self._group(group, [])

    def rest(self) -> Iterator[Rollout]:
        """Yield the rollouts that this call has settled in groups that are still open."""
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
    """Return the number of samples that a group needs to be judged together."""
    return math.ceil(min_group * samples - 1e-9) if math.isfinite(samples) else 1
