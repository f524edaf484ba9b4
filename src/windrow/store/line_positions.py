"""Positions of lines in the segments of a log, and lists of many positions in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec

_OFFSET_BITS = 48  # a segment of up to 256 TiB


class LinePosition(msgspec.Struct, frozen=True, order=True, gc=False):
    """A line by its segment and the offset in bytes at which it begins."""

    segment: str
    offset: int


class LinePositions:
    """A list of positions, eight bytes each."""

    def __init__(self) -> None:
        self._packed = array("Q")
        self._segments: list[str] = []
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, index: int) -> LinePosition:
        return self.unpack(self._packed[index])

    def __iter__(self) -> Iterator[LinePosition]:
        return map(self.unpack, self._packed)

    def append(self, position: LinePosition) -> None:
        self._packed.append(self.packed(position))

    def packed(self, position: LinePosition) -> int:
        """The position as an integer that `unpack` turns back; it need not be in the list."""
        number = self._numbers.setdefault(position.segment, len(self._segments))
        if number == len(self._segments):
            self._segments.append(position.segment)
        return number << _OFFSET_BITS | position.offset

    def unpack(self, packed: int) -> LinePosition:
        return LinePosition(self._segments[packed >> _OFFSET_BITS], packed & ((1 << _OFFSET_BITS) - 1))
