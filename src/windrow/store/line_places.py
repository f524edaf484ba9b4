"""Where lines stand in the segments of a log, and many such places in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec

_OFFSET_BITS = 48  # a segment of up to 256 TiB


class Place(msgspec.Struct, frozen=True, order=True, gc=False):
    """Where a line stands."""

    segment: str
    offset: int


class Places:
    """A list of places, eight bytes each."""

    def __init__(self) -> None:
        self._packed = array("Q")
        self._segments: list[str] = []
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, position: int) -> Place:
        return self.place(self._packed[position])

    def __iter__(self) -> Iterator[Place]:
        return map(self.place, self._packed)

    def append(self, place: Place) -> None:
        self._packed.append(self.packed(place))

    def packed(self, place: Place) -> int:
        """The place as a whole number that `place` understands; also for one that is not in the list."""
        number = self._numbers.setdefault(place.segment, len(self._segments))
        if number == len(self._segments):
            self._segments.append(place.segment)
        return number << _OFFSET_BITS | place.offset

    def place(self, packed: int) -> Place:
        return Place(self._segments[packed >> _OFFSET_BITS], packed & ((1 << _OFFSET_BITS) - 1))
