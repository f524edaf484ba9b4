"""How values are spread: mean, deviation, extremes and median of many numbers, in little memory."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

EXACT_VALUES = 8192  # distinct values that are told apart before the median is rounded
TOGETHER = 2048


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Of `n` values. `std` is the sample deviation (n − 1), None for a single value.

    `median_error` is how far, relative to itself, the median may be off: 0 unless there were very many values.
    """

    n: int
    mean: float | None
    std: float | None
    min: float
    median: float
    max: float
    median_error: float


class Moments(msgspec.Struct):
    """Count, mean, deviation and extremes of a stream of values, many at a time."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, counts: Mapping[float, int]) -> None:
        """Take in values, each as often as `counts` says: two streams' means and squares make those of both."""
        n = sum(counts.values())
        mean = sum(value * (count / n) for value, count in counts.items())  # the values' sum might overflow
        squares = sum(count * ((value - mean) * (value - mean)) for value, count in counts.items())
        step = mean - self.mean
        self.squares += squares + step * step * (self.n / (self.n + n)) * n
        self.mean += step * (n / (self.n + n))
        self.n += n
        self.low = min(self.low, *counts)
        self.high = max(self.high, *counts)

    @property
    def std(self) -> float | None:
        if self.n < 2 or not math.isfinite(self.squares):
            return None
        return math.sqrt(self.squares / (self.n - 1))


class Values:
    """A stream of values and their spread. Memory grows with distinct values, and only up to a bound."""

    def __init__(self) -> None:
        self._moments = Moments()
        self._counts: dict[float, int] = {}
        self._bits: int | None = None  # of the mantissa that are kept; None: all
        self._latest = array("d")  # taken in together, which costs a fraction

    def add(self, values: Iterable[float]) -> None:
        self._latest.extend(values)
        if len(self._latest) >= TOGETHER:
            self._take_in()

    def spread(self) -> Spread:
        self._take_in()
        moments = self._moments
        return Spread(
            n=moments.n,
            mean=finite(moments.mean),
            std=moments.std,
            min=moments.low,
            median=self._median(),
            max=moments.high,
            median_error=0.0 if self._bits is None else 2.0 ** (1 - self._bits),
        )

    def _take_in(self) -> None:
        if not self._latest:
            return
        latest = Counter(self._latest)
        self._latest = array("d")
        self._moments.add(latest)
        counts, bits = self._counts, self._bits
        for value, count in latest.items():
            rounded = value if bits is None else self._rounded(value, bits)
            counts[rounded] = counts.get(rounded, 0) + count
        while len(self._counts) > EXACT_VALUES:
            self._coarsen()

    @staticmethod
    def _rounded(value: float, bits: int) -> float:
        mantissa, exponent = math.frexp(value)
        scale = 1 << bits
        return math.ldexp(math.trunc(mantissa * scale) / scale, exponent)

    def _coarsen(self) -> None:
        """Keep one bit less of every value; truncation, so that doing it in steps or at once is the same."""
        self._bits = 16 if self._bits is None else self._bits - 1
        counts: dict[float, int] = {}
        for value, count in self._counts.items():
            rounded = self._rounded(value, self._bits)
            counts[rounded] = counts.get(rounded, 0) + count
        self._counts = counts

    def _median(self) -> float:
        """The middle value, or the mean of the two in the middle."""
        lower, upper = (self._moments.n - 1) // 2, self._moments.n // 2
        middle: list[float] = []
        passed = 0
        for value in sorted(self._counts):
            passed += self._counts[value]
            while len(middle) < 2 and passed > (lower, upper)[len(middle)]:
                middle.append(value)
        return middle[0] / 2 + middle[1] / 2


def finite(value: float | None) -> float | None:
    """`value`, or None where it is not a number that JSON could hold."""
    return value if value is not None and math.isfinite(value) else None
