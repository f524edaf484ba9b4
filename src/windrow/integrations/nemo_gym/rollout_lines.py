"""The lines of NeMo Gym's rollouts and failures, including truncated files: each is an attempt, or a problem with the
line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from windrow.collecting.importing import ImportedAttempt, UnreadableLine
from windrow.errors import UsageError
from windrow.integrations.nemo_gym.rows import FAILURE_CLASS, split_row

_decode = msgspec.json.Decoder().decode


def read_lines(path: Path, end: int | None = None) -> Iterator[ImportedAttempt | UnreadableLine]:
    """Yield the lines that begin before the byte `end`: the file may still be growing."""
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


def _line(raw: bytes, where: str) -> ImportedAttempt | UnreadableLine:
    if not raw.strip():
        return UnreadableLine(where, "the line is blank", blank=True)
    torn = not raw.endswith(b"\n")
    try:
        answer = _value(raw)
        if not isinstance(answer, dict):
            return UnreadableLine(where, "expected a JSON object")
        _, marks = split_row(answer)
    except (ValueError, RecursionError) as problem:
        return UnreadableLine(where, "the line is torn" if torn else f"cannot be read: {problem}")
    if marks.task is None or marks.rollout is None:
        return UnreadableLine(
            where, "it lacks '_ng_task_index' or '_ng_rollout_index', so nobody knows whose it is"
        )
    failed = answer.get(FAILURE_CLASS) is not None
    return ImportedAttempt(where, marks.task, marks.rollout, failed, answer, raw.strip())


def _value(raw: bytes) -> Any:
    try:
        return _decode(raw)
    except msgspec.DecodeError:
        return json.loads(raw)  # which takes NaN, as some writers write it
