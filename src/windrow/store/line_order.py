"""The order in which a run's rollouts are read back, in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from windrow.store.line_heads import Head
from windrow.store.line_positions import LinePosition, LinePositions


class LineOrder:
    """Positions sorted by (task.index, sample, attempt), then by id, or by seat within an episode. Forty bytes each;
    they are sorted one piece at a time."""

    def __init__(self) -> None:
        self._positions = LinePositions()
        self._pieces: dict[int, array[int]] = {}  # by task.index in thousands, five numbers per line

    def add(self, position: LinePosition, head: Head) -> None:
        index = head.task.index
        piece = self._pieces.setdefault(index >> 10, array("Q"))
        if head.seat is None:
            start = int.from_bytes(head.id.encode()[:8].ljust(8, b"\0"), "big")
        else:
            start = int.from_bytes(head.group.encode()[:6].ljust(6, b"\0"), "big") << 16 | min(
                head.seat, 65535
            )
        piece.extend((index, head.sample, head.attempt, start, self._positions.packed(position)))

    def __iter__(self) -> Iterator[LinePosition]:
        for number in sorted(self._pieces):
            piece = self._pieces.pop(number)
            for *_, packed in sorted(zip(*(piece[field::5] for field in range(5)), strict=True)):
                yield self._positions.unpack(packed)
