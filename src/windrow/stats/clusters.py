"""Numbers for each task in arrays, one row per task: a run of many tasks costs tens of bytes for each."""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Iterator, Mapping, Sequence

import msgspec

from windrow.stats.estimate import Cluster
from windrow.util.hash_index import HashIndex


class GroupNumbers:
    """Gives each group (the samples of one task) a row number, in the order in which they come up."""

    def __init__(self) -> None:
        self._index = HashIndex("I")

    def __len__(self) -> int:
        return len(self._index)

    def rows(self, groups: Sequence[Hashable]) -> list[int]:
        """The number of each; the rollouts of a group stand close together, and are looked up once."""
        numbers = {group: self._row(group) for group in dict.fromkeys(groups)}
        return [numbers[group] for group in groups]

    def _row(self, group: Hashable) -> int:
        row = self._index.get(group)
        if row is None:
            row = len(self._index)
            self._index.set(group, row)
        return row

    def find(self, group: Hashable) -> int | None:
        """The number of a group that came up."""
        return self._index.get(group)


Counted = Mapping[tuple[int, float], int]  # how often a value came up in a row


class Clusters:
    """One Cluster per row, sixteen bytes each."""

    def __init__(self) -> None:
        self.n = array("I")
        self.total = array("d")
        self.passed = array("I")

    def __len__(self) -> int:
        return len(self.n)

    def __getitem__(self, row: int) -> Cluster:
        """Empty where nothing was added."""
        if row >= len(self.n):
            return Cluster()
        return Cluster(self.n[row], self.total[row], self.passed[row])

    def __iter__(self) -> Iterator[Cluster]:
        return map(Cluster, self.n, self.total, self.passed)

    def add(self, values: Counted, *, pass_from: float = math.inf) -> None:
        missing = max([row for row, _ in values], default=-1) + 1 - len(self.n)
        if missing > 0:
            self.n.frombytes(bytes(self.n.itemsize * missing))
            self.total.frombytes(bytes(8 * missing))
            self.passed.frombytes(bytes(self.passed.itemsize * missing))
        n, total, passed = self.n, self.total, self.passed
        for (row, value), count in values.items():
            n[row] += count
            total[row] += value * count
            if value >= pass_from:
                passed[row] += count


class GroupVariety(msgspec.Struct, frozen=True):
    """Of `n` groups with two rewards or more, `zero_variance` have rewards that are all the same. A trainer that subtracts the
    mean of a group learns nothing from those."""

    n: int
    zero_variance: int


_ONE, _ALIKE, _DIFFERENT = 1, 2, 3


class Variety:
    """Whether the values of a row are all the same; nine bytes per row."""

    def __init__(self) -> None:
        self._first = array("d")
        self._found = bytearray()

    def add(self, values: Counted) -> None:
        missing = max([row for row, _ in values], default=-1) + 1 - len(self._found)
        if missing > 0:
            self._first.frombytes(bytes(8 * missing))
            self._found += bytes(missing)
        first, found = self._first, self._found
        for (row, value), count in values.items():
            if not found[row]:
                first[row], found[row] = value, _ONE if count == 1 else _ALIKE
            elif found[row] != _DIFFERENT:
                found[row] = _ALIKE if first[row] == value else _DIFFERENT

    def groups(self) -> GroupVariety:
        alike = self._found.count(_ALIKE)
        return GroupVariety(alike + self._found.count(_DIFFERENT), alike)
