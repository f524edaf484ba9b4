"""What a call gives out, and when: a rollout once it is on disk and graded, or together with its group.

Where a group is judged as a whole, its rollouts are held back until it is: their reward is open until then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec

from windrow.collecting.grading import CollectGrading, OnGroup, OnProgress, is_graded
from windrow.engine.commit_queue import Finished, is_pending
from windrow.engine.control import Control
from windrow.engine.progress import Progress
from windrow.engine.stop_conditions import StopConditions
from windrow.grading.groups import Groups
from windrow.records import Rollout
from windrow.store.folding import GRADABLE
from windrow.tasks.plan import Slot
from windrow.util.freeze import copied_task

Committed = Callable[[Rollout, bool], Awaitable[None]]  # (rollout, settled)


class Listeners(NamedTuple):
    """Who is told of what a call does."""

    on_commit: Committed | None
    on_progress: OnProgress | None
    on_group: OnGroup | None


class Delivery:
    """Grades what is committed, counts it, and tells the listeners."""

    def __init__(
        self,
        grading: CollectGrading,
        groups: Groups | None,
        *,
        progress: Progress,
        stop_conditions: StopConditions,
        control: Control,
        listeners: Listeners,
    ) -> None:
        self._grading = grading
        self._groups = groups
        self._progress = progress
        self._stop_conditions = stop_conditions
        self._control = control
        self._listeners = listeners

    @property
    def wants_rollouts(self) -> bool:
        """Whether anybody looks at the rollouts themselves."""
        return self._listeners.on_commit is not None or self._groups is not None

    def on_durable(self, batch: Sequence[Finished]) -> Sequence[Finished]:
        """Attempts are on disk. Count those that nobody waits for, and return the others: `deliver` counts them."""
        if self._groups is not None or any(self._listeners):
            return batch
        remaining = []
        for finished in batch:
            if is_pending(finished):
                remaining.append(finished)
            else:
                self._count(finished)
        return remaining

    async def deliver(self, finished: Finished) -> None:
        """Count an attempt that is on disk, grade it, and give it out."""
        slot, _, settled, rollouts = finished
        self._count(finished)
        graded = [await self._graded(rollout, slot) for rollout in rollouts]
        if settled and self._groups is not None:
            await self._settled(slot, graded, self._groups)
        elif self._listeners.on_commit is not None:
            for rollout in graded:
                await self._listeners.on_commit(_whole(rollout, slot), settled)
        if self._listeners.on_progress is not None:
            await self._listeners.on_progress()

    async def rest(self) -> None:
        """The call is over: give out what was held back for groups that it has not settled."""
        for rollout in self._groups.rest() if self._groups is not None else ():
            if self._grading.judges_groups(rollout.env):
                await self._give([rollout])

    def _count(self, finished: Finished) -> None:
        self._progress.count(finished.outcomes, settled=finished.settled)
        if finished.settled:
            self._stop_conditions.settled(finished.outcomes[0], self._progress)

    async def _graded(self, rollout: Rollout, slot: Slot) -> Rollout:
        if rollout.grade != "pending" or self._control.cancelled:
            return rollout
        graded = await self._grading.grade(_whole(rollout, slot))
        self._progress.judge(graded)
        return graded

    async def _settled(self, slot: Slot, rollouts: list[Rollout], groups: Groups) -> None:
        """A slot is not tried again in this call."""
        together = self._grading.judges_groups(rollouts[0].env)
        given = [_whole(rollout, slot) for rollout in rollouts]
        closed = groups.settle(slot, given)
        if not together:
            await self._give(given)
        if closed is None:
            return
        group, fresh = closed.group, list(closed.fresh)
        if together and group is not None and not self._control.cancelled:
            changed = any(rollout.status in GRADABLE for rollout in fresh)
            group = await self._grading.grade_group(group, changed=changed)
            judged = {rollout.key: rollout for rollout in group.rollouts}
            fresh = [judged.get(rollout.key, rollout) for rollout in fresh]
            for rollout in fresh:
                if rollout.key in judged:
                    self._progress.judge(rollout)
        if together:
            await self._give(fresh)
        if group is not None and self._listeners.on_group is not None and is_graded(group):
            await self._listeners.on_group(group)

    async def _give(self, rollouts: list[Rollout]) -> None:
        if self._listeners.on_commit is not None:
            for rollout in rollouts:
                await self._listeners.on_commit(rollout, True)


def _whole(rollout: Rollout, slot: Slot) -> Rollout:
    """The rollout as it is given out: with its row, also a large one, that whoever gets it may spoil."""
    return msgspec.structs.replace(rollout, task=copied_task(slot.task))
