"""Folding gradings into a rollout: which scores count, and what grade and reward follow.

The environment's own scores always count. A scorer's count when they were given under the active grading
fingerprint, in the log line itself or in scores.jsonl; the latest grading of a scorer wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from windrow.records import ErrorRecord, Grade, Grading, Json, RecordedScore, Rollout, reward_of


def expected_scorers(grading: Mapping[str, Json], env: str) -> tuple[str, ...]:
    """The names of the scorers that a rollout of `env` is to have, by what the grading fingerprint is of."""
    if grading.get("env") not in (None, env):
        return ()
    return tuple(scorer["name"] for scorer in grading.get("scorers") or ())


def fold(
    rollout: Rollout, gradings: Sequence[Grading], *, active: str | None, expected: Sequence[str]
) -> Rollout:
    if rollout.status not in ("completed", "truncated") or (not gradings and rollout.grading == active):
        return rollout
    scores = {
        name: score
        for name, score in rollout.scores.items()
        if score.scorer is None or rollout.grading == active
    }
    metrics = dict(rollout.metrics)
    errors: dict[str, ErrorRecord] = {}
    for grading in gradings:
        if grading.error is not None:
            errors[grading.scorer] = grading.error
            continue
        position = grading.members.index((rollout.id, rollout.attempt))
        scores = {name: score for name, score in scores.items() if score.scorer != grading.scorer}
        scores |= grading.scores[position]
        metrics |= grading.metrics[position] if grading.metrics else {}
    grade, error = _grade(rollout, scores, expected, errors, inline=rollout.grading == active)
    return msgspec.structs.replace(
        rollout,
        scores=scores,
        metrics=metrics,
        grade=grade,
        grading=active,
        error=error,
        reward=reward_of(rollout.status, grade, scores, rollout.turns),
    )


def missing_scorers(rollout: Rollout, expected: Sequence[str]) -> tuple[str, ...]:
    """The scorers whose verdict a folded rollout lacks."""
    if rollout.status not in ("completed", "truncated"):
        return ()
    given = {score.scorer for score in rollout.scores.values()}
    return tuple(name for name in expected if name not in given)


def _grade(
    rollout: Rollout,
    scores: Mapping[str, RecordedScore],
    expected: Sequence[str],
    errors: Mapping[str, ErrorRecord],
    *,
    inline: bool,
) -> tuple[Grade, ErrorRecord | None]:
    """The grade, and the error that stands in its way. `inline`: the line's own scoring counts."""
    if rollout.grade == "failed" and rollout.error is not None and rollout.error.owner == "env":
        return "failed", rollout.error  # only running the episode again can give the environment's own score
    given = {score.scorer for score in scores.values()}
    for name in expected:
        if name not in given:
            error = errors.get(name) or (rollout.error if inline else None)
            return ("failed", error) if error else ("pending", None)
    if scores or any(turn.reward is not None for turn in rollout.turns):
        return "graded", None
    return "none", None
