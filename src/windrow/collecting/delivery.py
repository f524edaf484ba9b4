"""Delivery: attempts that are on disk are counted, graded, and put into the stream of events.

Where group scorers judge a whole group, its rollouts are held back until they have: their reward is not known before.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from windrow.collecting.events import EventStream, GroupReady, ProgressChanged, RolloutReady
from windrow.collecting.grading import CollectGrading, is_graded
from windrow.engine.commit_queue import FinishedAttempt, awaits_grading
from windrow.engine.control import Control
from windrow.engine.outcome import Outcome
from windrow.engine.progress import Progress
from windrow.engine.stop_conditions import StopConditions
from windrow.grading.groups import GroupTracker
from windrow.records import Rollout
from windrow.store.folding import GRADABLE
from windrow.store.resume import ResumeState
from windrow.tasks.plan import Slot
from windrow.util.freeze import copied_task


class Delivery:
    """What happens to each attempt after its end. It implements `AttemptObserver` (`engine/commit_queue.py`)."""

    def __init__(
        self,
        resume_state: ResumeState,
        grading: CollectGrading,
        groups: GroupTracker | None,
        *,
        progress: Progress,
        stop_conditions: StopConditions,
        control: Control,
        events: EventStream,
    ) -> None:
        self._resume_state = resume_state
        self._grading = grading
        self._groups = groups
        self._progress = progress
        self._stop_conditions = stop_conditions
        self._control = control
        self._events = events

    @property
    def wants_rollouts(self) -> bool:
        """Whether the rollouts themselves are needed, and not only their outcomes."""
        return self._events.wants(RolloutReady) or self._groups is not None

    def on_attempt_end(self, outcome: Outcome) -> None:
        self._stop_conditions.attempt_ended(outcome)

    def on_durable(self, batch: Sequence[FinishedAttempt]) -> Sequence[FinishedAttempt]:
        """Mark the slots in the ledger. Count attempts that nobody waits for, and return the others."""
        for finished in batch:
            if self._groups is not None:
                self._groups.touch(finished.slot)
            self._resume_state.add_attempt(finished.slot, finished.outcomes)
        if self.wants_rollouts or self._events.wants(ProgressChanged) or self._events.wants(GroupReady):
            return batch
        remaining = []
        for finished in batch:
            if awaits_grading(finished):
                remaining.append(finished)
            else:
                self._count(finished)
        return remaining

    async def on_committed(self, finished: FinishedAttempt) -> None:
        """Count an attempt that is on disk, grade it, and deliver it."""
        slot, _, settled, rollouts = finished
        self._count(finished)
        graded = [await self._graded(rollout, slot) for rollout in rollouts]
        if settled and self._groups is not None:
            await self._settle(slot, graded, self._groups)
        else:
            await self._deliver([_with_task(rollout, slot) for rollout in graded], settled=settled)
        if self._events.wants(ProgressChanged):
            await self._events.put(ProgressChanged(self._progress.snapshot()))

    async def deliver_rest(self) -> None:
        """The call is over: deliver rollouts that were held back for groups which it has not settled."""
        for rollout in self._groups.rest() if self._groups is not None else ():
            if self._grading.judges_groups(rollout.env):
                await self._deliver([rollout])

    def _count(self, finished: FinishedAttempt) -> None:
        self._progress.count(finished.outcomes, settled=finished.settled)
        if finished.settled:
            self._stop_conditions.slot_settled(finished.outcomes[0], self._progress)

    async def _graded(self, rollout: Rollout, slot: Slot) -> Rollout:
        if rollout.grade != "pending" or self._control.cancelled:
            return rollout
        graded = await self._grading.grade(_with_task(rollout, slot))
        self._progress.count_verdict(graded)
        return graded

    async def _settle(self, slot: Slot, rollouts: list[Rollout], groups: GroupTracker) -> None:
        """This call does not try the slot again."""
        judged_together = self._grading.judges_groups(rollouts[0].env)
        with_tasks = [_with_task(rollout, slot) for rollout in rollouts]
        closed = groups.settle(slot, with_tasks)
        if not judged_together:
            await self._deliver(with_tasks)
        if closed is None:
            return
        group, fresh = closed.group, list(closed.fresh)
        if judged_together and group is not None and not self._control.cancelled:
            changed = any(rollout.status in GRADABLE for rollout in fresh)
            group = await self._grading.grade_group(group, changed=changed)
            judged = {rollout.key: rollout for rollout in group.rollouts}
            fresh = [judged.get(rollout.key, rollout) for rollout in fresh]
            for rollout in fresh:
                if rollout.key in judged:
                    self._progress.count_verdict(rollout)
        if judged_together:
            await self._deliver(fresh)
        if group is not None and self._events.wants(GroupReady) and is_graded(group):
            await self._events.put(GroupReady(group))

    async def _deliver(self, rollouts: Sequence[Rollout], *, settled: bool = True) -> None:
        if self._events.wants(RolloutReady):
            for rollout in rollouts:
                await self._events.put(RolloutReady(rollout, settled))


def _with_task(rollout: Rollout, slot: Slot) -> Rollout:
    """The rollout with its whole row, also a large one, in a copy that the reader may change."""
    return msgspec.structs.replace(rollout, task=copied_task(slot.task))
