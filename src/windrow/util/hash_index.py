"""Maps names to numbers in little memory: some 40 bytes per entry, where a dict of strings takes 200."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from itertools import pairwise
from typing import Literal

_FULL = 2 / 3
_LOW_BITS = 10
_LOW = (1 << _LOW_BITS) - 1
_HIGH = 0xFFFFFFFF


class HashIndex:
    """A number for each of many names. Entries are never removed.

    Only the 64-bit hash of a name is stored. Python keys it anew in every process: among a million names, two share a hash
    about once in forty million runs.
    """

    def __init__(self, numbers: Literal["I", "Q"] = "Q") -> None:
        """`numbers` is the type code of the array: "I" for numbers below four billion."""
        self._count = 0
        self._type = numbers
        self._make_room(1 << 10)

    @classmethod
    def numbering(cls, names: Iterable[Hashable], count: int) -> HashIndex:
        """Names numbered from 0, about `count` of them. A name that occurs twice has its last number."""
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
        slot = wanted & mask
        while number := numbers[slot]:
            if hashes[slot] == wanted:
                return number - 1
            slot = (slot + 1) & mask
        return None

    def set(self, name: Hashable, number: int) -> None:
        """`number` is not negative."""
        self.exchange(name, number)

    def exchange(self, name: Hashable, number: int) -> int | None:
        """Set the number of a name; returns its previous number."""
        if self._count >= self._capacity:
            self._grow()
        before = self._put(hash(name), number + 1)
        if before:
            return before - 1
        self._count += 1
        return None

    def _put(self, wanted: int, number: int) -> int:
        """Returns the previous entry; 0 if there was none."""
        hashes, numbers, mask = self._hashes, self._numbers, self._mask
        slot = wanted & mask
        while (before := numbers[slot]) and hashes[slot] != wanted:
            slot = (slot + 1) & mask
        hashes[slot], numbers[slot] = wanted, number
        return before

    def _make_room(self, size: int) -> None:
        self._mask = size - 1
        self._capacity = int(size * _FULL)
        self._hashes = array("q", [0]) * size
        self._numbers = array(self._type, [0]) * size  # the number plus one; 0 marks a free slot

    def _grow(self) -> None:
        hashes, numbers = self._hashes, self._numbers
        self._make_room(2 * len(numbers))
        for wanted, number in zip(hashes, numbers, strict=True):
            if number:
                self._put(wanted, number)


class DuplicateFinder:
    """Finds the names that occur more than once, in four bytes per name. It may report a few names too many, never too few."""

    def __init__(self) -> None:
        self._buckets = [array("I") for _ in range(_LOW + 1)]

    def add(self, name: Hashable) -> None:
        self.update((name,))

    def update(self, names: Iterable[Hashable]) -> None:
        """Add many names: a third of the cost of one call for each."""
        buckets = self._buckets
        for value in map(hash, names):
            buckets[value & _LOW].append(value >> _LOW_BITS & _HIGH)

    def duplicates(self) -> DuplicateNames:
        return DuplicateNames(
            {
                value << _LOW_BITS | number
                for number, bucket in enumerate(self._buckets)
                for value, after in pairwise(sorted(bucket))
                if value == after
            }
        )


class DuplicateNames:
    def __init__(self, hashes: set[int]) -> None:
        self._hashes = hashes

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def __contains__(self, name: Hashable) -> bool:
        return hash(name) & (_HIGH << _LOW_BITS | _LOW) in self._hashes
