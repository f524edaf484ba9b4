"""The grading of one `collect` call: first rollouts that earlier calls left ungraded, then those that this call commits.

The resume state says which verdicts a rollout of an earlier call lacks, and counts what is still ungraded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from windrow.config import RunConfig
from windrow.engine.control import Control
from windrow.engine.progress import Progress
from windrow.grading.grading_pass import GradingPass, folded
from windrow.grading.grading_writer import GradingLog, UnstoredGradings
from windrow.grading.groups import GroupTracker
from windrow.grading.run_scorers import RunScorers
from windrow.records import Rollout, RolloutGroup, Usage
from windrow.store.folding import expected_group_scorers, expected_scorers, is_ungraded, missing_scorers
from windrow.store.judgements import Judgements
from windrow.store.line_positions import LinePosition
from windrow.store.manifest import Fingerprint
from windrow.store.resume import ResumeState
from windrow.util.blobs import Blobs

OnProgress = Callable[[], Awaitable[None]]
OnGroup = Callable[[RolloutGroup], Awaitable[None]]

NOT_GRADED = Fingerprint("", {}, 0)  # the generation of a run without scorers


class CollectGrading:
    """Judges for one call. Without a `generation` there are no scorers, and rollouts are returned as they are."""

    def __init__(
        self,
        scorers: RunScorers,
        run: RunConfig,
        resume_state: ResumeState,
        groups: GroupTracker | None,
        *,
        generation: Fingerprint | None,
        log: GradingLog | None,
        judgements: Judgements | None,
        blobs: Blobs,
        concurrency: int,
        on_usage: Callable[[Usage], None],
    ) -> None:
        self._resume_state = resume_state
        self._groups = groups
        self._generation = generation
        self._concurrency = concurrency
        self._pass = GradingPass(
            scorers,
            run,
            generation or NOT_GRADED,
            log or UnstoredGradings(),
            judgements=judgements,
            blobs=blobs,
            on_usage=on_usage,
        )

    def open(self, control: Control, warn: Callable[[str], None]) -> AbstractAsyncContextManager[None]:
        """Inside, the scorers' models are open."""
        return self._pass.open(control, warn)

    def judges_groups(self, env: str) -> bool:
        return self._generation is not None and bool(expected_group_scorers(self._generation.of, env))

    async def grade(self, rollout: Rollout, *, fresh: bool = True) -> Rollout:
        """Return the rollout with the verdicts that it lacked, except for those on its group.

        Nobody can have judged more of a `fresh` rollout than its line says: if scores.jsonl has verdicts on the same
        attempt, they are about a line that was lost.
        """
        generation = self._generation
        if generation is None:
            return rollout
        expected = expected_scorers(generation.of, rollout.env)
        missing = (
            missing_scorers(rollout, expected)
            if fresh
            else self._resume_state.missing_scorers(rollout, expected)
        )
        gradings = await self._pass.grade(rollout, missing)
        graded = folded(rollout, gradings, generation)
        self._resume_state.add_gradings(rollout, gradings)
        self._resume_state.count_graded([rollout], [graded])
        return graded

    async def grade_group(self, group: RolloutGroup, *, changed: bool = True) -> RolloutGroup:
        """Return the group with the verdicts that it lacked: if it has `changed`, those of all group scorers."""
        generation = self._generation
        env = group.rollouts[0].env
        if generation is None or not self.judges_groups(env):
            return group
        names: Sequence[str] = expected_group_scorers(generation.of, env)
        if not changed:
            missing = {
                name
                for rollout in group.rollouts
                for name in self._resume_state.missing_scorers(rollout, names)
            }
            names = [name for name in names if name in missing]
        graded = await self._pass.grade_group(group, names)
        self._resume_state.count_graded(group.rollouts, graded.rollouts)
        return graded

    async def grade_leftovers(
        self,
        control: Control,
        progress: Progress,
        on_progress: OnProgress,
        on_group: OnGroup,
    ) -> None:
        """Judge what is on disk and not graded, rollouts first, until the control stops it.

        `on_group` is awaited with each group that is graded now, `on_progress` after each rollout and each group.
        """

        async def judge_rollout(line_position: LinePosition) -> None:
            await self.grade(self._resume_state.read(line_position), fresh=False)

        async def judge_group(id: str) -> None:
            group = self._groups.settled_before(id) if self._groups is not None else None
            if group is not None:
                graded = await self.grade_group(group, changed=False)
                if is_graded(graded):
                    await on_group(graded)

        async def count() -> None:
            progress.graded += 1
            await on_progress()

        most = self._concurrency
        rollouts, groups = iter(self._resume_state.ungraded_lines), self._resume_state.ungraded_groups()
        await self._pass.grade_each(rollouts, judge_rollout, count, control=control, first=most, most=most)
        await self._pass.grade_each(groups, judge_group, count, control=control, first=most, most=most)


def is_graded(group: RolloutGroup) -> bool:
    """Whether nothing of the group is left ungraded."""
    return not any(map(is_ungraded, group.rollouts))
