"""Grading after the commit: what the line left pending or failed is judged from the record, into scores.jsonl.

A grading is one line, whole: of a rollout, or of a group. What has none is graded by the next call. The rollouts
themselves are never run again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from windrow.engine.cancel import is_ours
from windrow.engine.episode import within
from windrow.engine.freeze import copied, copied_task
from windrow.engine.recorder import shown_episode
from windrow.engine.world import AnyScorer, GroupScorer, Scorer, Verdict
from windrow.envs import Episode
from windrow.errors import ScorerError, error_record
from windrow.grade.judges import Hearing, Judges
from windrow.records import AttemptId, ErrorRecord, Grading, Rollout, RolloutGroup

Verdicts = Mapping[AttemptId, Verdict | None]


class GradingLog(Protocol):
    async def commit(self, grading: Grading) -> None: ...


class Grader:
    """Has scorers judge rollouts and groups; each grading is durable when it is returned."""

    def __init__(
        self,
        scorers: Sequence[AnyScorer],
        judges: Judges,
        log: GradingLog,
        *,
        fingerprint: str,
        generation: int,
        timeout_s: float,
    ) -> None:
        self._scorers: dict[str, Scorer] = {}
        self._group_scorers: dict[str, GroupScorer] = {}
        for scorer in scorers:
            if isinstance(scorer, GroupScorer):
                self._group_scorers[scorer.name] = scorer
            else:
                self._scorers[scorer.name] = scorer
        self._judges = judges
        self._log = log
        self._fingerprint = fingerprint
        self._generation = generation
        self._timeout_s = timeout_s

    async def grade(self, rollout: Rollout, names: Sequence[str]) -> list[Grading]:
        """Have these scorers judge a rollout; those that judge groups are left out."""

        async def judged(hearing: Hearing, name: str) -> Verdicts:
            return {rollout.key: await self._scorers[name].judge(_episode(rollout), hearing)}

        return [
            await self._graded(rollout.id, (rollout,), name, judged)
            for name in names
            if name in self._scorers
        ]

    async def grade_group(self, group: RolloutGroup, names: Sequence[str]) -> list[Grading]:
        """Have these scorers judge a group; those that judge rollouts are left out."""

        async def judged(hearing: Hearing, name: str) -> Verdicts:
            shown = self._shown(group, name)
            return _checked(await self._group_scorers[name].judge_group(shown, hearing), group, name)

        return [
            await self._graded(group.id, group.rollouts, name, judged)
            for name in names
            if name in self._group_scorers
        ]

    async def _graded(
        self,
        unit: str,
        members: Sequence[Rollout],
        name: str,
        judged: Callable[[Hearing, str], Awaitable[Verdicts]],
    ) -> Grading:
        hearing = self._judges.hearing(name)
        verdicts: Verdicts = {}
        error: ErrorRecord | None = None
        try:
            if any(rollout.capture == "none" for rollout in members):  # an empty reply would be judged wrong
                raise ScorerError(
                    "the rollout was recorded without its messages (capture: none)", retryable=False
                )
            # its own time: that of its judge's calls is counted by call
            verdicts = await within(self._timeout_s, judged(hearing, name), name, hearing.timed_by)
        except BaseException as problem:  # a scorer's failure is a grading that failed, never a lost run
            if is_ours(problem):
                raise
            error = error_record(problem, owner="scorer", phase="score")
        given = [verdicts.get(rollout.key) for rollout in members]
        grading = Grading(
            unit=unit,
            members=tuple(rollout.key for rollout in members),
            scorer=name,
            fingerprint=self._fingerprint,
            generation=self._generation,
            scores=tuple({} if verdict is None else verdict.scores for verdict in given),
            metrics=tuple({} if verdict is None else verdict.metrics for verdict in given),
            error=error,
            usage=hearing.usage,
            graded_at=time.time(),
            judgements=tuple(hearing.judgements),
            tokens=tuple({} if verdict is None else verdict.tokens for verdict in given)
            if any(verdict is not None and verdict.tokens for verdict in given)
            else (),
        )
        await self._log.commit(grading)
        return grading

    def _shown(self, group: RolloutGroup, name: str) -> RolloutGroup:
        """What a scorer sees of a group, to do with as it likes: the scores of those before it, not of those after."""
        order = list(self._group_scorers)
        later = order[order.index(name) :]
        return msgspec.structs.replace(
            group,
            task=copied_task(group.task),
            rollouts=tuple(
                msgspec.structs.replace(
                    rollout,
                    task=copied_task(rollout.task),
                    scores={key: score for key, score in rollout.scores.items() if score.scorer not in later},
                    metrics=dict(rollout.metrics),
                    state=copied(rollout.state),
                )
                for rollout in group.rollouts
            ),
        )


def _checked(verdicts: Verdicts, group: RolloutGroup, scorer: str) -> Verdicts:
    """Every member has a verdict, and nobody else."""
    members = {rollout.key for rollout in group.rollouts}
    if strangers := verdicts.keys() - members:
        raise ScorerError(
            f"scorer {scorer!r} judged {min(strangers, key=repr)!r}, which is not in the group; a verdict goes by "
            f"rollout.key: (id, attempt)"
        )
    if missing := members - verdicts.keys():
        raise ScorerError(f"scorer {scorer!r} gave no verdict for {min(missing)}; None says that it has none")
    return verdicts


def _episode(rollout: Rollout) -> Episode:
    return shown_episode(
        rollout.task, rollout.messages, rollout.turns, rollout.state, rollout.status, rollout.stop
    )
