"""The grading pass, which `collect` and `rescore` share: scorers judge what is recorded, and each verdict is durable.

The caller says what is to be judged and by which scorers: `collect` by what earlier calls left and by what it commits,
`rescore` by its selection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from windrow.config import RunConfig
from windrow.engine.control import Control
from windrow.grading.grader import Grader
from windrow.grading.grading_workers import GradingWorkers
from windrow.grading.grading_writer import GradingLog, GradingWriter, OnDurable
from windrow.grading.judges import Judges
from windrow.grading.run_scorers import RunScorers
from windrow.records import Grading, Rollout, RolloutGroup, Usage
from windrow.store.folding import expected_scorers, fold
from windrow.store.judgements import Judgements
from windrow.store.manifest import Fingerprint
from windrow.util.blobs import Blobs

T = TypeVar("T")


class GradingPass:
    """Has the scorers of a call judge rollouts and groups, and writes down what they say.

    With a `batch_size` of 1, each grading is durable before the next scorer is asked. With a larger one, the verdicts
    of scorers that waited for nothing share a write, since they are cheap to make again; a verdict that took a wait is
    written at once. `on_durable` is given gradings once they are on disk, `on_usage` the tokens of each judge's call.
    """

    def __init__(
        self,
        scorers: RunScorers,
        run: RunConfig,
        generation: Fingerprint,
        log: GradingLog,
        *,
        judgements: Judgements | None = None,
        blobs: Blobs | None = None,
        on_usage: Callable[[Usage], None] = lambda usage: None,
        on_durable: OnDurable = lambda gradings: None,
        batch_size: int = 1,
    ) -> None:
        self._generation = generation
        self._judges = Judges(
            scorers.models,
            call_timeout_s=run.limits.call_timeout_s,
            concurrency=run.judge_concurrency,
            judgements=judgements,
            blobs=blobs,
            on_usage=on_usage,
        )
        self._grader = Grader(
            scorers.scorers,
            self._judges,
            fingerprint=generation.hash,
            generation=generation.generation,
            timeout_s=run.limits.score_timeout_s,
        )
        self._writer = GradingWriter(log, on_durable, batch_size=batch_size)
        self._waits = 0  # how often a scorer gave way to the event loop
        self._on_wait: Callable[[], None] = lambda: None

    @asynccontextmanager
    async def open(self, control: Control, warn: Callable[[str], None]) -> AsyncIterator[None]:
        """Inside, the scorers' models are open. A cancellation by the control leaves it without an error."""
        try:
            with control.cancellable():
                await self._judges.open(warn)
            yield
        except asyncio.CancelledError:
            if not control.absorb():
                raise
        finally:
            await self._judges.close()

    async def grade(self, rollout: Rollout, names: Sequence[str]) -> list[Grading]:
        """Have the scorers of these names judge a rollout, except for those that judge groups."""
        return [
            await self._written(self._grader.judge(rollout, name))
            for name in names
            if name in self._grader.scorers
        ]

    async def grade_group(self, group: RolloutGroup, names: Sequence[str]) -> RolloutGroup:
        """Have the group scorers of these names judge a group; return it with their verdicts."""
        for name in names:  # one after the other: each sees the scores of those before it
            if name in self._grader.group_scorers:
                grading = await self._written(self._grader.judge_group(group, name))
                graded = tuple(folded(rollout, [grading], self._generation) for rollout in group.rollouts)
                group = msgspec.structs.replace(group, rollouts=graded)
        return group

    async def grade_each(
        self,
        items: Iterator[T],
        judge: Callable[[T], Awaitable[None]],
        after_each: Callable[[], Awaitable[None]],
        *,
        control: Control,
        first: int,
        most: int,
    ) -> None:
        """Call `judge` with each item, until the control stops it; return when all verdicts are durable.

        `first` workers begin. Whenever a scorer waits another one starts, until there are `most`.
        """
        workers = GradingWorkers(items, judge, after_each, control=control, most=most)
        self._on_wait = workers.start_another
        try:
            await workers.run(first)
        finally:
            await self._writer.write()

    async def _written(self, work: Coroutine[Any, Any, Grading]) -> Grading:
        """The grading that comes of `work`, given to the writer."""
        before = self._waits
        # The event loop calls this only if `work` gives way to it.
        waiting = asyncio.get_running_loop().call_soon(self._note_wait)
        try:
            grading = await work
        finally:
            waiting.cancel()
        await self._writer.add(grading, at_once=self._waits != before)
        return grading

    def _note_wait(self) -> None:
        self._waits += 1
        self._on_wait()


def folded(rollout: Rollout, gradings: Sequence[Grading], generation: Fingerprint) -> Rollout:
    """The rollout with the scores, grade and reward that these gradings of the generation give it."""
    expected = expected_scorers(generation.of, rollout.env)
    return fold(rollout, gradings, active=generation.hash, expected=expected)
