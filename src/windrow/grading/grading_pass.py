"""The grading of one call: rollouts and groups are judged from the record, and each verdict is durable.

What an earlier call left is judged first; what this call collects, as it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from windrow.config import RunConfig
from windrow.engine.control import Control
from windrow.engine.progress import Progress
from windrow.engine.scheduler import first_of
from windrow.errors import WindrowError
from windrow.grading.grader import Grader, GradingLog
from windrow.grading.groups import Groups
from windrow.grading.judges import Judges
from windrow.grading.run_scorers import RunScorers
from windrow.records import Grading, Rollout, RolloutGroup
from windrow.store.folding import expected_group_scorers, expected_scorers, fold, is_ungraded, missing_scorers
from windrow.store.judgements import Judgements
from windrow.store.line_positions import LinePosition
from windrow.store.manifest import Fingerprint
from windrow.store.resume import ResumeState
from windrow.util.blobs import Blobs

T = TypeVar("T")

Progressed = Callable[[], Awaitable[None]]
Grouped = Callable[[RolloutGroup], Awaitable[None]]


class Nowhere:
    """The log of gradings that are not stored."""

    async def commit(self, gradings: Sequence[Grading]) -> None:
        return None


class GradingStage:
    """Judges for one call. Without a `grading` there is nothing to judge, and what it is given is given back."""

    def __init__(
        self,
        judging: RunScorers,
        run: RunConfig,
        resume_state: ResumeState,
        groups: Groups | None,
        *,
        grading: Fingerprint | None,
        log: GradingLog | None = None,
        judgements: Judgements | None = None,
        blobs: Blobs | None = None,
        concurrency: int,
    ) -> None:
        self._resume_state = resume_state
        self._groups = groups
        self._grading = grading
        self._concurrency = concurrency
        self.judges = Judges(
            judging.models,
            call_timeout_s=run.limits.call_timeout_s,
            concurrency=run.judge_concurrency,
            judgements=judgements,
            blobs=blobs,
        )
        self._grader = Grader(
            judging.scorers,
            self.judges,
            log or Nowhere(),
            fingerprint=grading.hash if grading else "",
            generation=grading.generation if grading else 0,
            timeout_s=run.limits.score_timeout_s,
        )

    @asynccontextmanager
    async def open(self, control: Control, warn: Callable[[str], None]) -> AsyncIterator[None]:
        """The scorers' models are open meanwhile."""
        try:
            with control.cancellable():
                await self.judges.open(warn)
            yield
        except asyncio.CancelledError:
            if not control.absorb():
                raise
        finally:
            await self.judges.close()

    def judges_groups(self, env: str) -> bool:
        return self._grading is not None and bool(expected_group_scorers(self._grading.of, env))

    async def grade(self, rollout: Rollout, *, fresh: bool = True) -> Rollout:
        """The rollout with the verdicts that it lacked, but those of its group.

        Of one that is `fresh` nobody can have judged more than its line says: what scores.jsonl has of the same
        attempt is of a line that was lost.
        """
        grading = self._grading
        if grading is None:
            return rollout
        expected = expected_scorers(grading.of, rollout.env)
        missing = (
            missing_scorers(rollout, expected)
            if fresh
            else self._resume_state.missing_scorers(rollout, expected)
        )
        gradings = await self._grader.grade(rollout, missing)
        graded = fold(rollout, gradings, active=grading.hash, expected=expected)
        self._resume_state.add_gradings(rollout, gradings)
        self._count([rollout], [graded])
        return graded

    async def grade_group(self, group: RolloutGroup, *, changed: bool = True) -> RolloutGroup:
        """The group with the verdicts that it lacked: all that are given to groups, if it has `changed`."""
        grading = self._grading
        env = group.rollouts[0].env
        if grading is None or not self.judges_groups(env):
            return group
        names: Sequence[str] = expected_group_scorers(grading.of, env)
        if not changed:
            lacking = {
                name
                for rollout in group.rollouts
                for name in self._resume_state.missing_scorers(rollout, names)
            }
            names = [name for name in names if name in lacking]
        graded = group
        for name in names:  # one after the other: each sees the scores of those before it
            graded = self._folded(graded, await self._grader.grade_group(graded, (name,)), grading)
        self._count(group.rollouts, graded.rollouts)
        return graded

    def _count(self, before: Sequence[Rollout], now: Sequence[Rollout]) -> None:
        self._resume_state.ungraded_count += sum(map(is_ungraded, now)) - sum(map(is_ungraded, before))

    def _folded(self, group: RolloutGroup, gradings: list[Grading], grading: Fingerprint) -> RolloutGroup:
        expected = expected_scorers(grading.of, group.rollouts[0].env)
        folded = (
            fold(rollout, gradings, active=grading.hash, expected=expected) for rollout in group.rollouts
        )
        return msgspec.structs.replace(group, rollouts=tuple(folded))

    async def grade_leftovers(
        self,
        control: Control,
        progress: Progress,
        on_progress: Progressed | None,
        on_group: Grouped | None,
    ) -> None:
        """Judge what is on disk and not graded, rollouts first; bounded, and cut short by a stop."""

        async def rollout(place: LinePosition) -> None:
            await self.grade(self._resume_state.read(place), fresh=False)

        async def group(id: str) -> None:
            found = self._groups.settled_before(id) if self._groups is not None else None
            if found is not None:
                graded = await self.grade_group(found, changed=False)
                if on_group is not None and whole(graded):
                    await on_group(graded)

        await self._each(iter(self._resume_state.ungraded_lines), rollout, control, progress, on_progress)
        await self._each(self._resume_state.ungraded_groups(), group, control, progress, on_progress)

    async def _each(
        self,
        found: Iterator[T],
        work: Callable[[T], Awaitable[None]],
        control: Control,
        progress: Progress,
        on_progress: Progressed | None,
    ) -> None:
        async def one_after_the_other() -> None:
            for item in found:
                if control.stopping:
                    return
                try:
                    with control.cancellable():
                        await work(item)
                    progress.graded += 1
                    if on_progress is not None:
                        await on_progress()
                except asyncio.CancelledError:
                    if not control.absorb():
                        raise

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._concurrency):
                    group.create_task(one_after_the_other())
        except* WindrowError as problems:
            raise first_of(problems) from None


def whole(group: RolloutGroup) -> bool:
    """Whether nothing of the group is left ungraded."""
    return not any(map(is_ungraded, group.rollouts))
