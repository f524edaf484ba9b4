"""Estimates, as pure functions: means with intervals clustered by task, pass@k without bias."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Protocol

import msgspec


class Mean(msgspec.Struct, frozen=True):
    """A mean over `n` values in `clusters` clusters; the interval is None where it cannot be estimated."""

    value: float
    low: float | None
    high: float | None
    n: int
    clusters: int


class Cluster(msgspec.Struct):
    """The values of one task, as far as a mean and pass@k need them."""

    n: int = 0
    total: float = 0.0
    passed: int = 0

    def add(self, value: float, *, passed: bool) -> None:
        self.n += 1
        self.total += value
        self.passed += passed


class ManyClusters(Protocol):
    """Clusters that can be gone through more than once."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Cluster]: ...


def clustered_mean(clusters: ManyClusters, *, confidence: float = 0.95) -> Mean | None:
    """The mean of all values, with an interval that treats values of one cluster as dependent.

    The variance is the cluster-robust one: G/(G-1) · Σ_g (Σ_i (x_gi − mean))² / n², t-distributed with G−1 degrees.
    """
    n = count = 0
    total = 0.0
    for cluster in clusters:
        n += cluster.n
        total += cluster.total
        count += cluster.n > 0
    if not n:
        return None
    mean = total / n
    if count < 2:
        return Mean(mean, None, None, n, count)
    residuals = (cluster.total - cluster.n * mean for cluster in clusters)
    spread = sum(residual * residual for residual in residuals)
    error = math.sqrt(count / (count - 1) * spread) / n
    reach = t_quantile((1 + confidence) / 2, count - 1) * error
    if not math.isfinite(reach):
        return Mean(mean, None, None, n, count)
    return Mean(mean, mean - reach, mean + reach, n, count)


def pass_at_k(n: int, passed: int, k: int) -> float:
    """The chance that at least one of k samples drawn without replacement from n passes."""
    if not 0 < k <= n:
        raise ValueError(f"pass@{k} of {n} samples is not defined")
    if n - passed < k:
        return 1.0
    return 1.0 - math.prod((n - passed - i) / (n - i) for i in range(k))


def _mean_pass_at(alike: Counter[tuple[int, int]], k: int) -> float:
    """The mean of pass@k over tasks, each of which weighs the same; `alike` counts tasks by samples and passed samples."""
    return sum(count * pass_at_k(n, passed, k) for (n, passed), count in alike.items()) / alike.total()


def pass_table(clusters: ManyClusters) -> tuple[dict[str, float], int]:
    """pass@k for k = 1, 2, 4, … and the largest, and over how many tasks: the same ones for every k.

    They are the tasks with as many graded samples as the best-covered one.
    """
    alike = Counter((cluster.n, cluster.passed) for cluster in clusters)
    most = max((n for n, _ in alike), default=0)
    full = Counter({(n, passed): count for (n, passed), count in alike.items() if n == most})
    return {str(k): _mean_pass_at(full, k) for k in table_ks(most)}, full.total() if most else 0


def table_ks(most: int) -> list[int]:
    """1, 2, 4, … and the largest."""
    return sorted({*(2**i for i in range(most.bit_length())), most} - {0})


@lru_cache(maxsize=16)  # every mean of a run asks for the same few
def t_quantile(p: float, degrees: int) -> float:
    """The quantile of Student's t: closed forms for 1 and 2 degrees, else by bisection of its distribution."""
    if degrees == 1:
        return math.tan(math.pi * (p - 0.5))
    if degrees == 2:
        return (2 * p - 1) / math.sqrt(2 * p * (1 - p))
    low, high = 0.0, 100.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, degrees) < p else (low, middle)
    return (low + high) / 2


def _t_cdf(t: float, degrees: int) -> float:
    """P(T ≤ t) for t ≥ 0, by the finite trigonometric series (exact for whole degrees of freedom)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees > 10_000:
        return 0.5 * (1 + math.erf(t / math.sqrt(2)))
    if degrees % 2 == 0:
        term = total = 1.0
        for j in range(1, degrees // 2):
            term *= (2 * j - 1) / (2 * j) * cosine**2
            total += term
        return 0.5 + 0.5 * sine * total
    term = total = cosine
    for j in range(1, (degrees - 1) // 2):
        term *= 2 * j / (2 * j + 1) * cosine**2
        total += term
    series = sine * total if degrees > 1 else 0.0
    return 0.5 + (angle + series) / math.pi
