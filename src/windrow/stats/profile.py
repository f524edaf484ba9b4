"""The reward profile of a run: how hard each task is for the policy, and which tasks there is something to learn from.

A task is a row of the source, whatever passes over it the run has made; what opponents played does not count. One pass over the final
attempts; memory grows with tasks, by some 190 bytes each (medians are exact: ten bytes for each reward of a task beyond
its first two different ones).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from windrow.errors import UsageError
from windrow.stats.clusters import Clusters, GroupNumbers, GroupVariety, Variety
from windrow.stats.final_attempts import LocatedAttempt, final_attempts
from windrow.stats.tally import PASS_REWARD, counted_rewards
from windrow.stats.task_table import GroupMetrics, TaskTable, decode_task_names
from windrow.store.reader import RunReader
from windrow.store.task_file import TASKS, count_tasks

By = Literal["pass_rate", "mean"]
Band = Literal["too_hard", "learnable", "too_easy", "ungraded"]

BANDS: tuple[Band, ...] = ("too_hard", "learnable", "too_easy", "ungraded")
RATE_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MEAN_BINS = 7


class Range(msgspec.Struct, frozen=True):
    """Both ends belong to it."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


LEARNABLE = Range(0.2, 0.8)


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks from `low` on and below `high`; where both are the same, those of just that value."""

    low: float
    high: float
    tasks: int


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A profile without its tasks: how many there are, by band and by value. `by` is what bands and bins go by."""

    run: str
    tasks: int  # that were tried
    untried: int  # tasks of the run of which there is no rollout
    rollouts: int
    graded: int
    by: By
    pass_reward: float
    learnable: Range
    bands: dict[Band, int]
    histogram: list[Bin]
    groups: GroupVariety
    bad_lines: int


class TaskProfile(GroupMetrics, frozen=True, kw_only=True):
    """One task; `band` is where its pass rate, or its mean reward, lies."""

    band: Band


class Profile:
    """What one pass over a run has found: the shape, and the tasks one at a time."""

    def __init__(self, reader: RunReader, *, pass_reward: float, by: By, learnable: Range) -> None:
        self._reader = reader
        self._table = TaskTable(lambda position: decode_task_names(reader.line(position)))
        self._rewards = Clusters()
        self._rows, self._group_rows = GroupNumbers(), GroupNumbers()
        self._variety = Variety()
        self._rollouts = 0
        self._pass_reward, self._by, self._learnable = pass_reward, by, learnable

    def add(self, attempts: Sequence[LocatedAttempt]) -> None:
        lines = [line for _, line in attempts]
        rows = self._rows.rows([self._name(line.task.digest, line.task.index) for line in lines])
        rewards = counted_rewards(rows, lines)
        self._table.add(rows, attempts, rewards)
        self._rewards.add(rewards, pass_from=self._pass_reward)
        self._variety.add(counted_rewards(self._group_rows.rows([line.group for line in lines]), lines))
        self._rollouts += len(lines)

    def shape(self) -> Shape:
        values = [self._value(row) for row in range(len(self._table))]
        bands = Counter(self._band(value) for value in values)
        return Shape(
            run=str(self._reader.path),
            tasks=len(self._table),
            untried=max(0, count_tasks(self._reader.folder / TASKS) - len(self._table)),
            rollouts=self._rollouts,
            graded=sum(self._rewards.n),
            by=self._by,
            pass_reward=self._pass_reward,
            learnable=self._learnable,
            bands={band: bands[band] for band in BANDS},
            histogram=_histogram([value for value in values if value is not None], self._by),
            groups=self._variety.groups(),
            bad_lines=len(self._reader.bad_lines),
        )

    def tasks(self) -> Iterator[TaskProfile]:
        """In the order of the source."""
        with self._reader:
            for entry in self._table.entries(self._rewards):
                value = entry.pass_rate if self._by == "pass_rate" else entry.mean
                yield TaskProfile(**msgspec.structs.asdict(entry), band=self._band(value))

    def value(self, digest: str, index: int) -> float | None:
        """The pass rate or mean reward of a task; None where nothing of it is graded."""
        row = self._rows.find(self._name(digest, index))
        return None if row is None else self._value(row)

    @staticmethod
    def _name(digest: str, index: int) -> Hashable:
        return digest, index  # rows that are alike are tasks of their own

    def _value(self, row: int) -> float | None:
        if self._by == "mean":
            return self._table.mean(row)
        cluster = self._rewards[row]
        return cluster.passed / cluster.n if cluster.n else None

    def _band(self, value: float | None) -> Band:
        if value is None:
            return "ungraded"
        if value in self._learnable:
            return "learnable"
        return "too_hard" if value < self._learnable.low else "too_easy"


def profile(
    run: str | Path, *, pass_reward: float = PASS_REWARD, by: By = "pass_rate", learnable: Range = LEARNABLE
) -> Profile:
    with RunReader(run) as reader:
        measured = Profile(reader, pass_reward=pass_reward, by=by, learnable=learnable)
        for attempts in final_attempts(reader, reader.gradings()):
            measured.add([(position, line) for position, line in attempts if not line.opponent])
        return measured


def parse_range(text: str) -> Range:
    """`LOW..HIGH`; either end may be left out."""
    low, dots, high = text.partition("..")
    try:
        range_ = Range(float(low or "-inf"), float(high or "inf"))
    except ValueError:
        range_ = Range(math.nan, math.nan)
    if not dots or not range_.low <= range_.high:
        raise UsageError(f"{text!r} is no range: expected LOW..HIGH, such as 0.2..0.8")
    return range_


def _histogram(values: Sequence[float], by: By) -> list[Bin]:
    """A pass rate of exactly 0 or 1 has a bin of its own: there is no gradient in either."""
    if by == "pass_rate":
        ends = [Bin(low=end, high=end, tasks=sum(value == end for value in values)) for end in (0.0, 1.0)]
        return [ends[0], *_bins([value for value in values if 0.0 < value < 1.0], RATE_EDGES), ends[1]]
    if not values:
        return []
    low, high = min(values), max(values)
    if low == high:
        return [Bin(low=low, high=high, tasks=len(values))]
    width = high / MEAN_BINS - low / MEAN_BINS
    return _bins(values, [*(low + width * number for number in range(MEAN_BINS)), high])


def _bins(values: Sequence[float], edges: Sequence[float]) -> list[Bin]:
    """A value at the last edge is in the last bin."""
    last = len(edges) - 2
    counts = Counter(min(bisect_right(edges, value) - 1, last) for value in values)
    return [Bin(low=edges[n], high=edges[n + 1], tasks=counts[n]) for n in range(last + 1)]
