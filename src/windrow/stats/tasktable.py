"""Task by task: how many rollouts, how their rewards are spread, what they spent. A row a task, in arrays."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterator

import msgspec

from windrow.stats.clusters import Clusters, Texts
from windrow.stats.lines import Line
from windrow.stats.spread import finite


class GroupMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One task: its `rollouts`, and the rewards of the `n` graded ones."""

    key: str
    index: int
    group: str
    rollouts: int
    n: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    pass_rate: float | None
    mean_prompt_tokens: float
    mean_completion_tokens: float


class TaskTable:
    def __init__(self) -> None:
        self._keys = Texts()
        self._groups = Texts()
        self._indexes = array("Q")
        self._rollouts = array("I")
        self._graded = array("I")
        self._means = array("d")  # of the rewards
        self._squares = array("d")  # of the rewards' distances from their mean
        self._lows = array("d")
        self._highs = array("d")
        self._prompt_tokens = array("Q")
        self._completion_tokens = array("Q")

    def __len__(self) -> int:
        return len(self._indexes)

    def group(self, row: int) -> str:
        return self._groups[row]

    def add(self, row: int, line: Line) -> None:
        """Count a line; a new row is the next one."""
        if row == len(self._indexes):
            self._open(line)
        self._rollouts[row] += 1
        self._prompt_tokens[row] += line.usage.prompt_tokens
        self._completion_tokens[row] += line.usage.completion_tokens
        reward = line.reward
        if reward is None:
            return
        self._graded[row] += 1
        step = reward - self._means[row]
        self._means[row] += step / self._graded[row]
        self._squares[row] += step * (reward - self._means[row])
        if reward < self._lows[row]:
            self._lows[row] = reward
        if reward > self._highs[row]:
            self._highs[row] = reward

    def entries(self, rewards: Clusters) -> Iterator[GroupMetrics]:
        """In the order of (task.index, group)."""
        for row in self._ordered():
            yield self._entry(row, rewards[row].passed)

    def _open(self, line: Line) -> None:
        self._keys.append(line.task.key)
        self._groups.append(line.group)
        self._indexes.append(line.task.index)
        for counts in (self._rollouts, self._graded, self._prompt_tokens, self._completion_tokens):
            counts.append(0)
        self._means.append(0.0)
        self._squares.append(0.0)
        self._lows.append(math.inf)
        self._highs.append(-math.inf)

    def _ordered(self) -> Iterator[int]:
        """The rows; the names of groups are compared only where they share a task."""
        order = sorted(range(len(self)), key=self._indexes.__getitem__)
        for _, rows in itertools.groupby(order, key=self._indexes.__getitem__):
            yield from sorted(rows, key=self._groups.__getitem__)

    def _entry(self, row: int, passed: int) -> GroupMetrics:
        n, rollouts = self._graded[row], self._rollouts[row]
        squares = self._squares[row]
        return GroupMetrics(
            key=self._keys[row],
            index=self._indexes[row],
            group=self._groups[row],
            rollouts=rollouts,
            n=n,
            mean=finite(self._means[row]) if n else None,
            std=math.sqrt(squares / (n - 1)) if n > 1 and math.isfinite(squares) else None,
            min=finite(self._lows[row]),
            max=finite(self._highs[row]),
            pass_rate=passed / n if n else None,
            mean_prompt_tokens=self._prompt_tokens[row] / rollouts,
            mean_completion_tokens=self._completion_tokens[row] / rollouts,
        )
