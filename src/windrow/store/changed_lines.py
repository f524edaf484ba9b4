"""Lines of a run that have changed since they were written, by their checksums."""

from __future__ import annotations

from collections.abc import Iterator

from windrow.store.line_checksums import checksum_problem
from windrow.store.line_heads import NOT_A_LINE, BadLine
from windrow.store.merging.conflicts import CONFLICTS, LOGS, decode_conflict
from windrow.store.reader import RunReader


def changed_lines(reader: RunReader) -> Iterator[BadLine]:
    """Every line of every log whose checksum does not fit its bytes."""
    for log in (*LOGS, CONFLICTS.removesuffix(".jsonl")):
        for line in reader.whole_lines(log):
            for text in _original_lines(log, line.text.rstrip(b"\n")):
                if (problem := checksum_problem(text)) is not None:
                    yield BadLine(line.segment, line.number, problem)


def _original_lines(log: str, line: bytes) -> list[bytes]:
    """The line as its writer wrote it; one of conflicts.jsonl holds lines of other logs."""
    if log in LOGS:
        return [line]
    try:
        return [bytes(original) for original in decode_conflict(line).lines]
    except NOT_A_LINE:
        return []
