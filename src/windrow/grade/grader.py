"""Grading after the commit: what the line left pending or failed is judged from the record, into scores.jsonl.

A grading is one line, whole; what has none is graded by the next call. The rollout itself is never run again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from windrow.engine.cancel import is_ours
from windrow.engine.episode import within
from windrow.engine.recorder import shown_episode
from windrow.engine.world import Scorer
from windrow.envs import Episode
from windrow.errors import ScorerError, error_record
from windrow.records import ErrorRecord, Grading, RecordedScore, Rollout


class GradingLog(Protocol):
    async def commit(self, grading: Grading) -> None: ...


class Grader:
    def __init__(
        self,
        scorers: Sequence[Scorer],
        log: GradingLog,
        *,
        fingerprint: str,
        generation: int,
        timeout_s: float,
    ) -> None:
        self._scorers = {scorer.name: scorer for scorer in scorers}
        self._log = log
        self._fingerprint = fingerprint
        self._generation = generation
        self._timeout_s = timeout_s

    async def grade(self, rollout: Rollout, names: Sequence[str]) -> list[Grading]:
        """Have these scorers judge a rollout; each grading is durable when this returns."""
        gradings = [await self._judged(rollout, self._scorers[name]) for name in names]
        for grading in gradings:
            await self._log.commit(grading)
        return gradings

    async def _judged(self, rollout: Rollout, scorer: Scorer) -> Grading:
        scores: dict[str, RecordedScore] = {}
        metrics: dict[str, float] = {}
        error: ErrorRecord | None = None
        try:
            if rollout.capture == "none":  # an empty reply would be judged wrong
                raise ScorerError(
                    "the rollout was recorded without its messages (capture: none)", retryable=False
                )
            verdict = await within(self._timeout_s, scorer.judge(_episode(rollout)), scorer.name)
            scores, metrics = verdict.scores, verdict.metrics
        except BaseException as problem:  # a scorer's failure is a grading that failed, never a lost run
            if is_ours(problem):
                raise
            error = error_record(problem, owner="scorer", phase="score")
        return Grading(
            unit=rollout.id,
            members=((rollout.id, rollout.attempt),),
            scorer=scorer.name,
            fingerprint=self._fingerprint,
            generation=self._generation,
            scores=(scores,),
            metrics=(metrics,),
            error=error,
            graded_at=time.time(),
        )


def _episode(rollout: Rollout) -> Episode:
    return shown_episode(
        rollout.task, rollout.messages, rollout.turns, rollout.state, rollout.status, rollout.stop
    )
