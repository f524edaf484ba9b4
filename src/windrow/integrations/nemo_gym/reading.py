"""Reading what NeMo Gym has written, also where it was broken off: each line, or what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from windrow.errors import UsageError
from windrow.integrations.nemo_gym.rows import split_row
from windrow.records import Json

_decode = msgspec.json.Decoder().decode


class Line(msgspec.Struct, frozen=True):
    """A line of rollouts or failures, and whose it is."""

    where: str
    task: int
    rollout: int
    answer: dict[str, Json]
    raw: bytes

    @property
    def name(self) -> str:
        return f"rollout {self.rollout} of task {self.task}"


class Problem(msgspec.Struct, frozen=True):
    """A line that is not taken, and why; `blank` is nobody's loss."""

    where: str
    why: str
    blank: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


def read_lines(path: Path, end: int | None = None) -> Iterator[Line | Problem]:
    """The lines that begin before the byte `end`: whoever writes the file may still be writing."""
    offset = 0
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if end is not None and offset >= end:
                    return
                yield _line(raw if end is None else raw[: end - offset], f"{path}:{number}")
                offset += len(raw)
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror or problem}") from None


def _line(raw: bytes, where: str) -> Line | Problem:
    if not raw.strip():
        return Problem(where, "the line is blank", blank=True)
    torn = not raw.endswith(b"\n")
    try:
        answer = _value(raw)
        if not isinstance(answer, dict):
            return Problem(where, "expected a JSON object")
        _, marks = split_row(answer)
    except (ValueError, RecursionError) as problem:
        return Problem(where, "the line is torn" if torn else f"cannot be read: {problem}")
    if marks.task is None or marks.rollout is None:
        return Problem(where, "it lacks '_ng_task_index' or '_ng_rollout_index', so nobody knows whose it is")
    return Line(where, marks.task, marks.rollout, answer, raw.strip())


def _value(raw: bytes) -> Any:
    try:
        return _decode(raw)
    except msgspec.DecodeError:
        return json.loads(raw)  # which takes NaN, as some writers write it
