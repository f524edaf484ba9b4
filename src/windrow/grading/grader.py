"""Grading after the commit: what the line left pending or failed is judged from the record, into scores.jsonl.

A grading is one line, whole: of a rollout, or of a group. What has none is graded by the next call. The rollouts
themselves are never run again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from windrow.engine.episode_scoring import within
from windrow.engine.record_building import shown_episode
from windrow.envs import Episode
from windrow.envs.scoring import AnyScorer, GroupScorer, Scorer, Verdict
from windrow.errors import ScorerError, error_record
from windrow.grading.judges import JudgeContext, Judges
from windrow.records import AttemptId, ErrorRecord, Grading, Rollout, RolloutGroup
from windrow.util.cancellation import is_ours
from windrow.util.freeze import copied, copied_task

Verdicts = Mapping[AttemptId, Verdict | None]


class Grader:
    """Has scorers judge rollouts and groups. A scorer's failure is a grading that failed, never a lost run.

    The time limit is of a scorer's own time: that of its judge's calls is counted by call.
    """

    def __init__(
        self,
        scorers: Sequence[AnyScorer],
        judges: Judges,
        *,
        fingerprint: str,
        generation: int,
        timeout_s: float,
    ) -> None:
        self.scorers: dict[str, Scorer] = {}
        self.group_scorers: dict[str, GroupScorer] = {}
        for scorer in scorers:
            if isinstance(scorer, GroupScorer):
                self.group_scorers[scorer.name] = scorer
            else:
                self.scorers[scorer.name] = scorer
        self._judges = judges
        self._fingerprint = fingerprint
        self._generation = generation
        self._timeout_s = timeout_s

    async def judge(self, rollout: Rollout, name: str) -> Grading:
        """What a scorer says of a rollout. The caller writes it down."""
        scorer = self.scorers[name]
        context = self._judges.context(name)
        verdict: Verdict | None = None
        error: ErrorRecord | None = None
        try:
            _check_captured(rollout)
            work = scorer.judge(_episode(rollout, scorer), context)
            verdict = await within(self._timeout_s, work, name, context.timed_by)
        except BaseException as problem:
            error = _failure(problem)
        return self._grading(rollout.id, (rollout.key,), name, context, (verdict,), error)

    async def judge_group(self, group: RolloutGroup, name: str) -> Grading:
        """What a scorer says of a group. The caller writes it down."""
        scorer = self.group_scorers[name]
        context = self._judges.context(name)
        members = tuple(rollout.key for rollout in group.rollouts)
        verdicts: Verdicts = {}
        error: ErrorRecord | None = None
        try:
            for rollout in group.rollouts:
                _check_captured(rollout)
            work = scorer.judge_group(self._shown(group, name), context)
            returned = await within(self._timeout_s, work, name, context.timed_by)
            verdicts = _checked(returned, members, name)
        except BaseException as problem:
            error = _failure(problem)
        given = [verdicts.get(member) for member in members]
        return self._grading(group.id, members, name, context, given, error)

    def _grading(
        self,
        unit: str,
        members: tuple[AttemptId, ...],
        scorer: str,
        context: JudgeContext,
        given: Sequence[Verdict | None],
        error: ErrorRecord | None,
    ) -> Grading:
        """A line of scores.jsonl: the verdicts are given in the order of the members."""
        verdicts = [_NO_VERDICT if verdict is None else verdict for verdict in given]
        taught = any(verdict.tokens for verdict in verdicts)
        return Grading(
            unit=unit,
            members=members,
            scorer=scorer,
            fingerprint=self._fingerprint,
            generation=self._generation,
            scores=tuple([verdict.scores for verdict in verdicts]),
            metrics=tuple([verdict.metrics for verdict in verdicts]),
            error=error,
            usage=context.usage,
            graded_at=time.time(),
            judgements=tuple(context.judgements),
            tokens=tuple([verdict.tokens for verdict in verdicts]) if taught else (),
        )

    def _shown(self, group: RolloutGroup, name: str) -> RolloutGroup:
        """What a scorer sees of a group, to do with as it likes: the scores of those before it, not of those after."""
        order = list(self.group_scorers)
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


_NO_VERDICT = Verdict({}, {})


def _check_captured(rollout: Rollout) -> None:
    if rollout.capture == "none":  # an empty reply would be judged wrong
        raise ScorerError("the rollout was recorded without its messages (capture: none)", retryable=False)


def _failure(problem: BaseException) -> ErrorRecord:
    """What a grading says of a scorer that raised; a cancellation of ours is raised again."""
    if is_ours(problem):
        raise problem
    return error_record(problem, owner="scorer", phase="score")


def _checked(verdicts: Verdicts, members: Sequence[AttemptId], scorer: str) -> Verdicts:
    """Every member has a verdict, and nobody else."""
    if strangers := verdicts.keys() - set(members):
        raise ScorerError(
            f"scorer {scorer!r} judged {min(strangers, key=repr)!r}, which is not in the group; a verdict goes by "
            f"rollout.key: (id, attempt)"
        )
    if missing := set(members) - verdicts.keys():
        raise ScorerError(f"scorer {scorer!r} gave no verdict for {min(missing)}; None says that it has none")
    return verdicts


def _episode(rollout: Rollout, scorer: Scorer) -> Episode:
    """What a scorer is shown: a copy, unless it is one of ours that changes nothing."""
    if scorer.only_reads:
        return Episode(
            task=rollout.task,
            messages=rollout.messages,
            turns=rollout.turns,
            state=rollout.state,
            status=rollout.status,
            stop=rollout.stop,
        )
    return shown_episode(
        rollout.task, rollout.messages, rollout.turns, rollout.state, rollout.status, rollout.stop
    )
