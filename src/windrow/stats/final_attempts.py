"""The final attempts of a run as statistics read them: decoded in part, with the scores that count now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from windrow.identity import canonical
from windrow.records import OPPONENT, RecordedScore, Usage, is_done
from windrow.store.folding import GradedFields, decode_graded_fields
from windrow.store.gradings import Gradings
from windrow.store.line_positions import LinePosition
from windrow.store.reader import RunReader


class TaskFields(msgspec.Struct, gc=False):
    """The task of a rollout, without its row."""

    key: str
    digest: str
    index: int


class _Error(msgspec.Struct, gc=False):
    owner: str
    kind: str


class _Timing(msgspec.Struct, gc=False):
    started_at: float
    policy: float
    total: float


class _Evidence(msgspec.Struct, gc=False):
    answer: Any = msgspec.UNSET


class _Value(msgspec.Struct, gc=False):
    """A score. Only the `answer` in its evidence is decoded; evidence that is no object is accepted and ignored."""

    value: float
    evidence: _Evidence | list[msgspec.Raw] | str | int | float | bool | None = None


class FinalAttempt(msgspec.Struct, gc=False):
    """The fields of a rollout that statistics need."""

    id: str
    attempt: int
    group: str
    task: TaskFields
    env: str
    agent: str
    status: str
    stop: str
    reason: str | None
    error: _Error | None
    grade: str
    grading: str | None
    reward: float | None
    scores: dict[str, _Value]
    metrics: dict[str, float]
    usage: Usage
    timing: _Timing
    seat: int | None = None

    @property
    def done(self) -> bool:
        return is_done(self.status, self.reason)

    @property
    def opponent(self) -> bool:
        return self.agent == OPPONENT

    @property
    def answer(self) -> str | msgspec.UnsetType | None:
        """The answer that the first scorer that looks for answers found in the reply; None if it found none.

        UNSET where no scorer looked for an answer. An answer that is not text is given as canonical JSON.
        """
        for score in self.scores.values():
            evidence = score.evidence
            if isinstance(evidence, _Evidence):
                answer = evidence.answer
                if answer is None or isinstance(answer, str):
                    return answer
                if answer is not msgspec.UNSET:
                    return canonical(answer).decode()
        return msgspec.UNSET


_decode_attempt = msgspec.json.Decoder(FinalAttempt).decode


LocatedAttempt = tuple[LinePosition, FinalAttempt]


def final_attempts(reader: RunReader, gradings: Gradings) -> Iterator[list[LocatedAttempt]]:
    """The final attempt of every slot, in log order, with its gradings folded in, in batches.

    Batches make counting cheaper. More of a line is decoded only where there are gradings to fold in.
    """
    active = reader.manifest.grading.hash if reader.manifest.grading else None

    def folded(line: FinalAttempt, text: bytes) -> FinalAttempt:
        if line.grading == active and (line.id, line.attempt) not in gradings:
            return line
        return _with_verdicts(line, reader.folded(decode_graded_fields(text), gradings))

    if gradings:
        yield from reader.final_batches(lambda text: folded(_decode_attempt(text), text))
        return
    for batch in reader.final_batches(_decode_attempt):
        if {line.grading for _, line in batch} - {active}:  # some were graded otherwise, or not at all
            yield [(position, reader.at(position, partial(folded, line))) for position, line in batch]
        else:
            yield batch


def _with_verdicts(line: FinalAttempt, rollout: GradedFields) -> FinalAttempt:
    error = rollout.error
    return msgspec.structs.replace(
        line,
        error=_Error(error.owner, error.kind) if error is not None else None,
        grade=rollout.grade,
        grading=rollout.grading,
        reward=rollout.reward,
        scores={name: _value(score) for name, score in rollout.scores.items()},
        metrics=rollout.metrics,
    )


def _value(score: RecordedScore) -> _Value:
    evidence = score.evidence
    answer = evidence.get("answer", msgspec.UNSET) if isinstance(evidence, Mapping) else msgspec.UNSET
    return _Value(score.value, _Evidence(answer))
