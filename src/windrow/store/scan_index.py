"""The index of a source: what a pass over its rows has found out, so that rows that have not changed are not read again.

It is kept under a digest of all that the pass went by: the bytes of the rows, the settings that they are mapped and checked
by (`collecting/rows.py`). It is believed for the same digest, and for nothing else: no time, name or size of a file counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from windrow.store.index_files import read_derived, write_derived
from windrow.tasks.rows import BadRow
from windrow.tasks.scan import PackedSource, Source
from windrow.util.disk import Disk

NAME = "source.index"
MIN_ROWS = 5_000  # fewer are read in a few hundredths of a second


class Findings(msgspec.Struct, frozen=True, array_like=True):
    """What a survey has found out, to be kept."""

    problem_rows: int
    all_numbers: bool
    unanswered: tuple[list[BadRow], int]
    unanswered_problems: tuple[list[BadRow], int]

    def __post_init__(self) -> None:
        problems = (*self.unanswered[0], *self.unanswered_problems[0])
        if not all((row.where + row.problem).isprintable() for row in problems):
            raise ValueError("a problem is no text that we write")


class KeptScan(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a pass."""

    key: str
    source: PackedSource
    findings: Findings


class ScanIndex(msgspec.Struct, frozen=True):
    """What a pass over rows has found out, under a digest of all that it went by."""

    key: str
    source: Source
    findings: Findings

    def save(self, run: Path, disk: Disk) -> None:
        if len(self.source) >= MIN_ROWS:
            write_derived(run, NAME, KeptScan(self.key, self.source.packed(), self.findings), disk)


def kept_scan(runs: Iterable[Path], key: str) -> KeptScan | None:
    """What one of these runs has kept of a pass that went by the same."""
    for run in runs:
        derived = read_derived(run, NAME, KeptScan)
        if derived is not None and derived[0].key == key:
            return derived[0]
    return None
