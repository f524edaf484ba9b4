"""Judging what is selected: as many scorers wait side by side as may, and what they say is written by the batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from windrow.engine.control import Control
from windrow.engine.scheduler import first_of
from windrow.errors import WindrowError
from windrow.grading.grader import Grader, GradingLog
from windrow.grading.rescoring.progress import RescoreProgress
from windrow.grading.rescoring.selection import Selection
from windrow.records import Grading, Rollout, RolloutGroup

AT_A_TIME = 256  # rollouts that are judged side by side, alone or in groups; and gradings that share a write
AT_FIRST = 2  # workers: one judges while the other one's gradings are written


class Batch:
    """Gradings on their way to the log. Those of scorers that wait for nothing share a write; each is counted once it
    is durable."""

    def __init__(self, log: GradingLog, count: Callable[[Sequence[Grading]], None]) -> None:
        self._log = log
        self._count = count
        self._made: list[Grading] = []

    async def add(self, grading: Grading, *, at_once: bool) -> None:
        """Take a grading. `at_once`, or when there are many: return when it is durable, and all before it."""
        self._made.append(grading)
        if at_once or len(self._made) >= AT_A_TIME:
            await self.write()

    async def write(self) -> None:
        """Return when all that nobody is writing yet is durable."""
        components, self._made = self._made, []
        if components:
            await self._log.commit(components)
            self._count(components)


class Judging:
    """The judging of one call."""

    def __init__(
        self,
        selection: Selection,
        grader: Grader,
        log: GradingLog,
        control: Control,
        progress: RescoreProgress,
        on_progress: Callable[[RescoreProgress], None] | None,
        *,
        samples: float,
    ) -> None:
        """`samples`: how many a group has."""
        self._selection = selection
        self._grader = grader
        self._batch = Batch(log, progress.count)
        self._control = control
        self._progress = progress
        self._on_progress = on_progress
        self._units = selection.units(progress)
        self._most = max(1, int(AT_A_TIME // (samples if selection.in_groups else 1)))
        self._workers = 0
        self._waits = 0  # for scorers

    async def run(self) -> None:
        """Judge everything, or until the control stops it. What was judged is durable, also if this is cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                for _ in range(AT_FIRST):
                    self._start_worker()
        except* WindrowError as problems:
            raise first_of(problems) from None
        finally:
            await self._batch.write()
        self._tell()

    def _start_worker(self) -> None:
        if self._workers < self._most:
            self._workers += 1
            self._group.create_task(self._work())

    async def _work(self) -> None:
        try:
            for unit in self._units:
                if self._control.stopping:
                    return
                self._progress.in_flight += 1
                if self._selection.in_groups:
                    await self._judge_group(unit)
                else:
                    await self._judge(*unit)
                self._progress.in_flight -= 1
                self._tell()
        except BaseException:
            self._most = 0  # the others are cancelled: none is started any more
            raise

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._progress)

    async def _judge(self, rollout: Rollout) -> list[Grading]:
        names = self._selection.scorers_of(rollout)
        return [await self._graded(self._grader.judge(rollout, name)) for name in names]

    async def _judge_group(self, unit: Sequence[Rollout]) -> None:
        """Each rollout of a group, then all together."""
        async with asyncio.TaskGroup() as each:
            judged = [each.create_task(self._with_verdicts(rollout)) for rollout in unit]
        rollouts = tuple(task.result() for task in judged)
        group = RolloutGroup(id=rollouts[0].group, task=rollouts[0].task, rollouts=rollouts)
        for name in self._selection.scorers_of_group(group):
            components = [await self._graded(self._grader.judge_group(group, name))]
            folded = tuple(self._selection.folded(rollout, components) for rollout in group.rollouts)
            group = msgspec.structs.replace(group, rollouts=folded)

    async def _with_verdicts(self, rollout: Rollout) -> Rollout:
        return self._selection.with_verdicts(rollout, await self._judge(rollout))

    async def _graded(self, work: Coroutine[Any, Any, Grading]) -> Grading:
        """The grading that comes of `work`. While it waits, another worker goes on; what took a wait is written at
        once, since it would cost another to make it again."""
        before = self._waits
        # The loop calls this only if `work` gives way to it.
        noticed = asyncio.get_running_loop().call_soon(self._notice_wait)
        try:
            grading = await work
        finally:
            noticed.cancel()
        await self._batch.add(grading, at_once=self._waits != before)
        return grading

    def _notice_wait(self) -> None:
        self._waits += 1
        self._start_worker()
