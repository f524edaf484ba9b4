"""Ranks: several calls of the same command, on one machine or on many, that share the tasks and the concurrent
episodes.

The shares depend on the plan and the weights alone. So every rank computes the same shares without asking another,
and together they cover each task exactly once.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Sequence
from fractions import Fraction

import msgspec

from windrow.records import Task
from windrow.tasks.plan import TaskList


class Rank(msgspec.Struct, frozen=True):
    """One of `len(weights)` ranks. A rank with twice the weight of another has twice as much to do."""

    number: int
    weights: tuple[float, ...]

    @property
    def world_size(self) -> int:
        return len(self.weights)

    @property
    def portion(self) -> float:
        """Return this rank's fraction of the whole."""
        whole = _whole_numbers(self.weights)
        return whole[self.number] / sum(whole)

    def places(self, total: int) -> int:
        """Return this rank's share of so many concurrent episodes: one at least."""
        return max(1, shares(total, self.weights)[self.number])

    def endpoints(self, count: int) -> slice:
        """Return this rank's slice of a list of so many servers. It is never empty, and together the slices are the
        list; where it cannot be cut there, the server at the border belongs to both.
        """
        whole = _whole_numbers(self.weights)
        before, own, parts = sum(whole[: self.number]), whole[self.number], sum(whole)
        return slice(count * before // parts, -(-count * (before + own) // parts))

    def positions(self, count: int) -> array[int]:
        """Return the positions of this rank in a plan of `count` tasks."""
        turns = rounds(self.weights, count)
        own_turns = [turn for turn, rank in enumerate(turns) if rank == self.number]
        positions = (start + turn for start in range(0, count, max(1, len(turns))) for turn in own_turns)
        return array("Q", (position for position in positions if position < count))


class Part:
    """One rank's tasks of a plan, in the plan's order."""

    def __init__(self, tasks: TaskList, positions: Sequence[int]) -> None:
        self._tasks = tasks
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def identity(self, position: int) -> tuple[str, int]:
        return self._tasks.identity(self._positions[position])

    def source(self, position: int) -> str:
        return self._tasks.source(self._positions[position])

    def task(self, position: int) -> Task:
        return self._tasks.task(self._positions[position])

    def digest(self) -> str:
        hasher = hashlib.sha256(self._tasks.digest().encode())
        hasher.update(array("Q", self._positions).tobytes())
        return hasher.hexdigest()


def plan_digest(tasks: TaskList, *, samples: int, pass_: int) -> str:
    """Return a digest of the shared tasks and their order: ranks with the same plan get the same one."""
    hasher = hashlib.sha256(b"%d %d" % (samples, pass_))
    for position in range(len(tasks)):
        name, occurrence = tasks.identity(position)
        hasher.update(f"\n{tasks.source(position)} {name} {occurrence}".encode())
    return hasher.hexdigest()[:16]


def shares(total: int, weights: Sequence[float]) -> list[int]:
    """Divide `total` by weight without loss: the remainder after rounding down goes to the largest fractions, and
    among equal ones to the lower rank.
    """
    whole = _whole_numbers(weights)
    parts = sum(whole)
    counts = [total * weight // parts for weight in whole]
    remainders = sorted(range(len(whole)), key=lambda rank: (-(total * whole[rank] % parts), rank))
    for rank in remainders[: total - sum(counts)]:
        counts[rank] += 1
    return counts


def rounds(weights: Sequence[float], most: int) -> list[int]:
    """Return the ranks in the order of their turns for one whole round, in which each comes up by its weight; at most
    `most` turns.

    After any number of turns each rank has had its exact share within one turn. So the tasks of a longer plan begin
    with those of a shorter one, and no task changes hands. (Tijdeman's solution of the chairman assignment problem:
    among the ranks that are due, the one with the earliest deadline.)
    """
    whole = _whole_numbers(weights)
    if len(set(whole)) == 1:
        return list(range(len(whole)))[:most]
    total, ranks = sum(whole), range(len(whole))
    slack = 2 * len(whole) - 2
    had = [0] * len(whole)
    turns: list[int] = []
    for number in range(1, min(total, most) + 1):
        owed = [slack * (number * whole[rank] - had[rank] * total) for rank in ranks]
        due = [rank for rank in ranks if owed[rank] >= total]
        chosen = due[0] if due else 0
        for rank in due[1:]:  # left / weight: how long until it is late
            left, least = (slack - 1) * total - owed[rank], (slack - 1) * total - owed[chosen]
            if left * whole[chosen] < least * whole[rank]:
                chosen = rank
        had[chosen] += 1
        turns.append(chosen)
    return turns


def _whole_numbers(weights: Sequence[float]) -> list[int]:
    """Return the weights, as they are written, as the smallest whole numbers in the same ratio."""
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    common = math.gcd(*whole)
    return [weight // common for weight in whole]
