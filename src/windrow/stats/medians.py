"""The exact median of each task's values, in little memory: most tasks have only two different rewards."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

PIECE_ROWS = 1024


class Medians:
    """For each row (task), the first two different values are counted, which takes 24 bytes; each further value is kept, in ten."""

    def __init__(self) -> None:
        self._values = (array("d"), array("d"))
        self._counts = (array("I"), array("I"))
        self._other_rows: list[array[int]] = []  # by piece
        self._others: list[array[float]] = []
        self._read: tuple[int, dict[int, list[float]]] = (-1, {})  # the piece that was asked for last

    def open(self) -> None:
        """One row more, without values."""
        for numbers in (*self._values, *self._counts):
            numbers.append(0)

    def add(self, row: int, value: float, count: int = 1) -> None:
        for values, counts in zip(self._values, self._counts, strict=True):
            if not counts[row]:
                values[row] = value
            if values[row] == value:
                counts[row] += count
                return
        for _ in range(count):
            self._keep(row, value)

    def median(self, row: int) -> float | None:
        """The middle value, or the mean of the two in the middle; None for a row without values.

        Rows are best asked for in their order: the others are grouped a piece at a time.
        """
        runs = [(values[row], counts[row]) for values, counts in zip(self._values, self._counts, strict=True)]
        runs += [(value, 1) for value in self._others_of(row)]
        runs.sort()
        n = sum(count for _, count in runs)
        return _at(runs, (n - 1) // 2) / 2 + _at(runs, n // 2) / 2 if n else None

    def _keep(self, row: int, value: float) -> None:
        piece, row_in_piece = divmod(row, PIECE_ROWS)
        while len(self._others) <= piece:
            self._others.append(array("d"))
            self._other_rows.append(array("H"))
        self._others[piece].append(value)
        self._other_rows[piece].append(row_in_piece)
        self._read = (-1, {})

    def _others_of(self, row: int) -> list[float]:
        piece, row_in_piece = divmod(row, PIECE_ROWS)
        if piece >= len(self._others):
            return []
        if self._read[0] != piece:
            grouped: dict[int, list[float]] = {}
            for of, value in zip(self._other_rows[piece], self._others[piece], strict=True):
                grouped.setdefault(of, []).append(value)
            self._read = (piece, grouped)
        return self._read[1].get(row_in_piece, [])


def _at(runs: Sequence[tuple[float, int]], index: int) -> float:
    """The value at a place among values that are sorted and counted."""
    for value, count in runs:
        index -= count
        if index < 0:
            return value
    raise IndexError
