"""The final attempts of a run as statistics read them: a partial decode, with the scores that count now."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from windrow.identity import canonical
from windrow.records import OPPONENT, RecordedScore, Usage, encode, is_done
from windrow.store.fold import Judged, decode_judged
from windrow.store.gradings import Gradings
from windrow.store.places import Place
from windrow.store.read import RunReader

BATCH_LINES = 512


class _Task(msgspec.Struct, gc=False):
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


_NO_EVIDENCE = msgspec.Raw()


class _Value(msgspec.Struct, gc=False):
    value: float
    evidence: msgspec.Raw = _NO_EVIDENCE


class Line(msgspec.Struct, gc=False):
    """What statistics need of a rollout."""

    id: str
    attempt: int
    group: str
    task: _Task
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
    def answer(self) -> tuple[bool, str | None]:
        """Whether a scorer read the reply for an answer, and the one that it found; the first such scorer's."""
        for score in self.scores.values():
            if b'"answer"' in (evidence := bytes(score.evidence)):
                found = _answer_in(evidence)
                if found is not msgspec.UNSET:
                    return True, found
        return False, None


class _Evidence(msgspec.Struct, gc=False):
    answer: Any = msgspec.UNSET


_decode_evidence = msgspec.json.Decoder(_Evidence).decode


def _answer_in(evidence: bytes) -> str | msgspec.UnsetType | None:
    """The `answer` that evidence speaks of; what is no text is compared as JSON."""
    try:
        found = _decode_evidence(evidence).answer
    except msgspec.DecodeError:  # it is no object
        return msgspec.UNSET
    if found is None or found is msgspec.UNSET or isinstance(found, str):
        return found
    return canonical(found).decode()


_decode_line = msgspec.json.Decoder(Line).decode


def final_lines(reader: RunReader, gradings: Gradings) -> Iterator[tuple[Place, Line]]:
    """The final attempt of every slot, in log order, gradings folded in; more of a line is decoded only for that."""
    active = reader.manifest.grading.hash if reader.manifest.grading else None

    def decode(text: bytes) -> Line:
        line = _decode_line(text)
        if line.grading == active and (line.id, line.attempt) not in gradings:
            return line
        return _with_verdicts(line, reader.folded(decode_judged(text), gradings))

    return reader.finals(decode)


def batches(lines: Iterable[tuple[Place, Line]]) -> Iterator[list[tuple[Place, Line]]]:
    """Many lines at a time: what is done with each of them is cheaper for a list."""
    found = iter(lines)
    while batch := list(itertools.islice(found, BATCH_LINES)):
        yield batch


def _with_verdicts(line: Line, rollout: Judged) -> Line:
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
    return _Value(score.value, msgspec.Raw(encode(score.evidence)))
