"""Judging what a rescore has selected, within its budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from windrow.engine.control import Control
from windrow.engine.stop_conditions import StopConditions
from windrow.grading.grading_pass import GradingPass, folded
from windrow.grading.rescoring.opening import OpenRescore
from windrow.grading.rescoring.progress import RescoreProgress
from windrow.grading.rescoring.selection import count_slots
from windrow.records import Rollout, RolloutGroup

AT_A_TIME = 256  # rollouts that are judged side by side, alone or in groups; and gradings that share a write
AT_FIRST = 2  # workers: one judges while the other one's gradings are written

OnProgress = Callable[[RescoreProgress], None]


async def judge_selection(
    opened: OpenRescore, control: Control, *, on_progress: OnProgress | None, warn: Callable[[str], None]
) -> RescoreProgress:
    """Judge everything that is selected, or until the control stops it; return how far it came.

    Each verdict that was given is durable, also after a cancellation.
    """
    progress = RescoreProgress(0 if on_progress is None else count_slots(opened.reader))
    if on_progress is not None:
        on_progress(progress)
    stop_conditions = StopConditions(control, budget=opened.run.budget, max_failure_rate=None)
    grading_pass = GradingPass(
        opened.scorers,
        opened.run,
        opened.generation,
        opened.log,
        judgements=opened.open_judgements(),
        blobs=opened.directory.blobs,
        on_usage=stop_conditions.add_usage,
        on_durable=progress.count,
        batch_size=AT_A_TIME,
    )
    stop_conditions.start()
    try:
        async with grading_pass.open(control, warn):
            await _SelectionPass(opened, grading_pass, progress, on_progress).run(control)
    finally:
        stop_conditions.release()
    return progress


class _SelectionPass:
    """The rollouts or groups of a selection, judged by the scorers that the selection names."""

    def __init__(
        self,
        opened: OpenRescore,
        grading_pass: GradingPass,
        progress: RescoreProgress,
        on_progress: OnProgress | None,
    ) -> None:
        self._selection = opened.selection
        self._generation = opened.generation
        self._samples = opened.reader.samples  # of each group
        self._pass = grading_pass
        self._progress = progress
        self._on_progress = on_progress

    async def run(self, control: Control) -> None:
        in_groups = self._selection.in_groups
        await self._pass.grade_each(
            self._selection.units(self._progress),
            self._judge_group if in_groups else self._judge_rollout,
            self._report,
            control=control,
            first=AT_FIRST,
            most=max(1, int(AT_A_TIME // (self._samples if in_groups else 1))),
        )
        await self._report()  # the last gradings are written only now

    async def _judge_rollout(self, unit: Sequence[Rollout]) -> None:
        with self._progress.judging():
            [rollout] = unit
            await self._pass.grade(rollout, self._selection.scorers_of(rollout))

    async def _judge_group(self, unit: Sequence[Rollout]) -> None:
        """Judge each rollout of a group, then the group."""
        with self._progress.judging():
            async with asyncio.TaskGroup() as tasks:
                graded = [tasks.create_task(self._graded(rollout)) for rollout in unit]
            rollouts = tuple(task.result() for task in graded)
            group = RolloutGroup(id=rollouts[0].group, task=rollouts[0].task, rollouts=rollouts)
            await self._pass.grade_group(group, self._selection.scorers_of_group(group))

    async def _graded(self, rollout: Rollout) -> Rollout:
        """The rollout with its verdicts of this generation, from earlier calls and from this one."""
        gradings = await self._pass.grade(rollout, self._selection.scorers_of(rollout))
        return folded(rollout, [*self._selection.earlier_gradings(rollout), *gradings], self._generation)

    async def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._progress)
