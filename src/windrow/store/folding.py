"""Folding gradings into a rollout: which scores count, and what grade and reward follow.

The environment's own scores always count. A scorer's count when they were given under the active grading, in the log
line itself or in scores.jsonl; the latest grading of a scorer wins, also one that failed. A scorer that was asked and
said that it does not apply is not missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from windrow.records import (
    OPPONENT,
    AttemptId,
    ErrorRecord,
    Grade,
    Grading,
    Json,
    RecordedScore,
    Rollout,
    Status,
    TeacherTokens,
    Turn,
    is_withheld,
    reward_of,
)

GRADABLE = ("completed", "truncated")


class Graded(Protocol):
    """A rollout, or the part of it that holds its grade."""

    @property
    def grade(self) -> str: ...


class _TurnReward(msgspec.Struct, gc=False):
    reward: float | None = None


class GradedFields(msgspec.Struct, gc=False):
    """The fields of a rollout that folding needs; the conversation is not decoded."""

    id: str
    attempt: int
    env: str
    agent: str
    status: Status
    error: ErrorRecord | None
    grade: Grade
    grading: str | None
    reward: float | None
    scores: dict[str, RecordedScore]
    metrics: dict[str, float]
    turns: tuple[_TurnReward, ...]

    @property
    def key(self) -> AttemptId:
        return self.id, self.attempt

    @property
    def opponent(self) -> bool:
        return self.agent == OPPONENT


decode_graded_fields = msgspec.json.Decoder(GradedFields).decode

R = TypeVar("R", Rollout, GradedFields)


def expected_scorers(grading: Mapping[str, Json], env: str) -> tuple[str, ...]:
    """The names of the scorers that a rollout of `env` is to have, by what the grading fingerprint is of."""
    return tuple(entry["name"] for entry in _entries(grading, env))


def expected_group_scorers(grading: Mapping[str, Json], env: str) -> tuple[str, ...]:
    """The expected scorers that judge groups."""
    return tuple(entry["name"] for entry in _entries(grading, env) if entry.get("unit") == "group")


def _entries(grading: Mapping[str, Json], env: str) -> list[Mapping[str, Json]]:
    whole = grading.get("env")
    return [entry for entry in grading.get("scorers") or () if (entry.get("env") or whole) in (None, env)]


def fold(rollout: R, gradings: Sequence[Grading], *, active: str | None, expected: Sequence[str]) -> R:
    if rollout.status not in GRADABLE or (not gradings and rollout.grading == active):
        return rollout
    if rollout.opponent:  # it is not judged: the game's own scores are all it has
        return rollout
    inline = rollout.grading == active
    scores = {name: score for name, score in rollout.scores.items() if inline or score.scorer is None}
    metrics = dict(rollout.metrics)
    for grading in gradings:
        if scores:
            scores = {name: score for name, score in scores.items() if score.scorer != grading.scorer}
        if grading.error is None:
            position = grading.members.index(rollout.key)
            scores |= grading.scores[position]
            metrics |= grading.metrics[position] if grading.metrics else {}
            if grading.tokens and isinstance(rollout, Rollout):
                turns = _taught(rollout.turns, grading.tokens[position])
                rollout = msgspec.structs.replace(rollout, turns=turns)
    grade, error = _grade(rollout, scores, expected, gradings, inline=inline)
    return msgspec.structs.replace(
        rollout,
        scores=scores,
        metrics=metrics,
        grade=grade,
        grading=active,
        error=error,
        reward=reward_of(rollout.status, grade, scores, rollout.turns),
    )


def _taught(turns: Sequence[Turn], teacher_by_turn: Mapping[int, TeacherTokens]) -> tuple[Turn, ...]:
    """The turns with the teacher's logprobs added to their tokens."""
    taught = list(turns)
    for number, teacher in teacher_by_turn.items():
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
    answered = _scorers_that_answered(rollout.scores, gradings)
    return tuple(name for name in expected if name not in answered)


def _scorers_that_answered(
    scores: Mapping[str, RecordedScore], gradings: Sequence[Grading]
) -> set[str | None]:
    """The scorers that gave a score, and those whose latest grading did not fail."""
    spoken: set[str | None] = set()
    for grading in gradings:
        if grading.error is None:
            spoken.add(grading.scorer)
        else:
            spoken.discard(grading.scorer)
    spoken.update([score.scorer for score in scores.values()])
    return spoken


def _grade(
    rollout: Rollout | GradedFields,
    scores: Mapping[str, RecordedScore],
    expected: Sequence[str],
    gradings: Sequence[Grading],
    *,
    inline: bool,
) -> tuple[Grade, ErrorRecord | None]:
    """The grade, and the error that prevents one. `inline`: the scores in the rollout's own line count."""
    if rollout.grade == "failed" and rollout.error is not None and rollout.error.owner == "env":
        return "failed", rollout.error  # only running the episode again can give the environment's own score
    answered = _scorers_that_answered(scores, gradings)
    for name in expected:
        if name not in answered:
            error = _error_of(name, gradings) or (rollout.error if inline else None)
            return ("failed", error) if error else ("pending", None)
    if is_withheld(scores):
        return "none", None
    if scores or any(turn.reward is not None for turn in rollout.turns):
        return "graded", None
    return "none", None


def _error_of(scorer: str, gradings: Sequence[Grading]) -> ErrorRecord | None:
    """The error of a scorer's last failed grading."""
    errors = [grading.error for grading in gradings if grading.scorer == scorer and grading.error is not None]
    return errors[-1] if errors else None
