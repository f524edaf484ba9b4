"""From names to numbers in little memory: some 40 bytes an entry where a dict of strings takes 200."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from itertools import pairwise
from typing import Literal

_FULL = 2 / 3
_LOW_BITS = 10
_LOW = (1 << _LOW_BITS) - 1
_KEPT = 0xFFFFFFFF


class Index:
    """A number for each of many names; nothing is ever taken out.

    A name is known by its 64-bit hash, which Python keys anew in every process: among a million names two share one
    about once in forty million runs.
    """

    def __init__(self, numbers: Literal["I", "Q"] = "Q") -> None:
        """`numbers` is the array's type: "I" for numbers that stay below four billion."""
        self._count = 0
        self._type = numbers
        self._make_room(1 << 10)

    @classmethod
    def numbering(cls, names: Iterable[Hashable], count: int) -> Index:
        """Names numbered from 0 on. There are about `count`; of one that comes up twice, the last number stands."""
        index = cls("I")
        size = 1 << 10
        while size * _FULL <= count:
            size *= 2
        index._make_room(size)
        for number, name in enumerate(names):
            index.set(name, number)
        return index

    def __len__(self) -> int:
        return self._count

    def get(self, name: Hashable) -> int | None:
        wanted = hash(name)
        hashes, numbers, mask = self._hashes, self._numbers, self._mask
        place = wanted & mask
        while number := numbers[place]:
            if hashes[place] == wanted:
                return number - 1
            place = (place + 1) & mask
        return None

    def set(self, name: Hashable, number: int) -> None:
        """`number` is not negative."""
        self.exchange(name, number)

    def exchange(self, name: Hashable, number: int) -> int | None:
        """Set the number of a name; the one that it had before."""
        if self._count >= self._most:
            self._grow()
        before = self._put(hash(name), number + 1)
        if before:
            return before - 1
        self._count += 1
        return None

    def _put(self, wanted: int, number: int) -> int:
        """What stood there before; 0: nothing."""
        hashes, numbers, mask = self._hashes, self._numbers, self._mask
        place = wanted & mask
        while (before := numbers[place]) and hashes[place] != wanted:
            place = (place + 1) & mask
        hashes[place], numbers[place] = wanted, number
        return before

    def _make_room(self, size: int) -> None:
        self._mask = size - 1
        self._most = int(size * _FULL)
        self._hashes = array("q", [0]) * size
        self._numbers = array(self._type, [0]) * size  # one more than the number; 0: nothing stands here

    def _grow(self) -> None:
        hashes, numbers = self._hashes, self._numbers
        self._make_room(2 * len(numbers))
        for wanted, number in zip(hashes, numbers, strict=True):
            if number:
                self._put(wanted, number)


class Repeats:
    """Finds which of many names came up more than once: four bytes a name, and a few too many rather than too few."""

    def __init__(self) -> None:
        self._buckets = [array("I") for _ in range(_LOW + 1)]

    def add(self, name: Hashable) -> None:
        self.update((name,))

    def update(self, names: Iterable[Hashable]) -> None:
        """Many names in one call, which costs a third of a call for each."""
        buckets = self._buckets
        for value in map(hash, names):
            buckets[value & _LOW].append(value >> _LOW_BITS & _KEPT)

    def found(self) -> RepeatedNames:
        return RepeatedNames(
            {
                value << _LOW_BITS | number
                for number, bucket in enumerate(self._buckets)
                for value, after in pairwise(sorted(bucket))
                if value == after
            }
        )


class RepeatedNames:
    def __init__(self, hashes: set[int]) -> None:
        self._hashes = hashes

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def __contains__(self, name: Hashable) -> bool:
        return hash(name) & (_KEPT << _LOW_BITS | _LOW) in self._hashes
