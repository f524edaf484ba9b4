"""Folding gradings into a rollout: which scores count, and what grade and reward follow.

The environment's own scores always count. A scorer's count when they were given under the active grading, in the log
line itself or in scores.jsonl; the latest grading of a scorer wins, also one that failed. A scorer that was asked and
said that it does not apply is not missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from windrow.records import (
    ErrorRecord,
    Grade,
    Grading,
    Json,
    RecordedScore,
    Rollout,
    TeacherTokens,
    Turn,
    reward_of,
)

GRADABLE = ("completed", "truncated")


class Graded(Protocol):
    """A rollout, or as much of it as says how it was graded."""

    @property
    def grade(self) -> str: ...


def expected_scorers(grading: Mapping[str, Json], env: str) -> tuple[str, ...]:
    """The names of the scorers that a rollout of `env` is to have, by what the grading fingerprint is of."""
    return tuple(entry["name"] for entry in _entries(grading, env))


def expected_group_scorers(grading: Mapping[str, Json], env: str) -> tuple[str, ...]:
    """Those of them that judge groups."""
    return tuple(entry["name"] for entry in _entries(grading, env) if entry.get("unit") == "group")


def _entries(grading: Mapping[str, Json], env: str) -> list[Mapping[str, Json]]:
    whole = grading.get("env")
    return [entry for entry in grading.get("scorers") or () if (entry.get("env") or whole) in (None, env)]


def fold(
    rollout: Rollout, gradings: Sequence[Grading], *, active: str | None, expected: Sequence[str]
) -> Rollout:
    if rollout.status not in GRADABLE or (not gradings and rollout.grading == active):
        return rollout
    if rollout.opponent:  # it is not judged: the game's own scores are all it has
        return rollout
    scores = {
        name: score
        for name, score in rollout.scores.items()
        if score.scorer is None or rollout.grading == active
    }
    metrics = dict(rollout.metrics)
    turns = rollout.turns
    for grading in gradings:
        scores = {name: score for name, score in scores.items() if score.scorer != grading.scorer}
        if grading.error is None:
            position = grading.members.index(rollout.key)
            scores |= grading.scores[position]
            metrics |= grading.metrics[position] if grading.metrics else {}
            turns = _taught(turns, grading.tokens[position]) if grading.tokens else turns
    grade, error = _grade(rollout, scores, expected, gradings, inline=rollout.grading == active)
    return msgspec.structs.replace(
        rollout,
        scores=scores,
        metrics=metrics,
        grade=grade,
        grading=active,
        error=error,
        turns=turns,
        reward=reward_of(rollout.status, grade, scores, rollout.turns),
    )


def _taught(turns: Sequence[Turn], found: Mapping[int, TeacherTokens]) -> tuple[Turn, ...]:
    """The turns with what a teacher says of their ids."""
    taught = list(turns)
    for number, teacher in found.items():
        tokens = taught[number].tokens if 0 <= number < len(taught) else None
        if tokens is not None and len(teacher.logprobs) == len(tokens.output):
            tokens = msgspec.structs.replace(tokens, teacher=teacher)
            taught[number] = msgspec.structs.replace(taught[number], tokens=tokens)
    return tuple(taught)


def is_ungraded(rollout: Graded) -> bool:
    """Whether a verdict is still to come, by the rollout or by its line alone."""
    return rollout.grade in ("pending", "failed")


def missing_scorers(
    rollout: Rollout, expected: Sequence[str], gradings: Sequence[Grading] = ()
) -> tuple[str, ...]:
    """The scorers whose verdict a folded rollout lacks."""
    if rollout.status not in GRADABLE or rollout.opponent:
        return ()
    given = _given(rollout.scores, gradings)
    return tuple(name for name in expected if name not in given)


def _given(scores: Mapping[str, RecordedScore], gradings: Sequence[Grading]) -> set[str | None]:
    """The scorers that have spoken."""
    latest = {grading.scorer: grading for grading in gradings}
    spoken = {name for name, grading in latest.items() if grading.error is None}
    return {score.scorer for score in scores.values()} | spoken


def _grade(
    rollout: Rollout,
    scores: Mapping[str, RecordedScore],
    expected: Sequence[str],
    gradings: Sequence[Grading],
    *,
    inline: bool,
) -> tuple[Grade, ErrorRecord | None]:
    """The grade, and the error that stands in its way. `inline`: the line's own scoring counts."""
    if rollout.grade == "failed" and rollout.error is not None and rollout.error.owner == "env":
        return "failed", rollout.error  # only running the episode again can give the environment's own score
    errors = {grading.scorer: grading.error for grading in gradings if grading.error is not None}
    given = _given(scores, gradings)
    for name in expected:
        if name not in given:
            error = errors.get(name) or (rollout.error if inline else None)
            return ("failed", error) if error else ("pending", None)
    if scores or any(turn.reward is not None for turn in rollout.turns):
        return "graded", None
    return "none", None
