"""The final attempts of a run as statistics read them: a partial decode, with the scores that count now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from windrow.identity import canonical
from windrow.records import OPPONENT, RecordedScore, Usage, is_done
from windrow.store.folding import Judged, decode_judged
from windrow.store.gradings import Gradings
from windrow.store.line_places import Place
from windrow.store.reader import RunReader


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


class _Evidence(msgspec.Struct, gc=False):
    answer: Any = msgspec.UNSET


class _Value(msgspec.Struct, gc=False):
    """A score. Of its evidence only an object's `answer` is of interest; other JSON is let through."""

    value: float
    evidence: _Evidence | list[msgspec.Raw] | str | int | float | bool | None = None


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
    def answer(self) -> str | msgspec.UnsetType | None:
        """What the first scorer that read the reply for an answer found, None for nothing; UNSET where none read it.

        What is no text is compared as JSON.
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


_decode_line = msgspec.json.Decoder(Line).decode


Found = tuple[Place, Line]


def final_lines(reader: RunReader, gradings: Gradings) -> Iterator[list[Found]]:
    """The final attempt of every slot, in log order, gradings folded in; more of a line is decoded only for that.

    They come many at a time: what is done with each of them is cheaper for a list.
    """
    active = reader.manifest.grading.hash if reader.manifest.grading else None

    def folded(line: Line, text: bytes) -> Line:
        if line.grading == active and (line.id, line.attempt) not in gradings:
            return line
        return _with_verdicts(line, reader.folded(decode_judged(text), gradings))

    if gradings:
        yield from reader.final_batches(lambda text: folded(_decode_line(text), text))
        return
    for found in reader.final_batches(_decode_line):
        if {line.grading for _, line in found} - {active}:  # some were graded otherwise, or not at all
            yield [(place, reader.at(place, partial(folded, line))) for place, line in found]
        else:
            yield found


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
    evidence = score.evidence
    answer = evidence.get("answer", msgspec.UNSET) if isinstance(evidence, Mapping) else msgspec.UNSET
    return _Value(score.value, _Evidence(answer))
