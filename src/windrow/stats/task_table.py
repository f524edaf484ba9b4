"""Numbers by task: rollouts, the spread of their rewards, their tokens. One row per task, in arrays."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence

import msgspec

from windrow.stats.clusters import Clusters, Counted
from windrow.stats.final_attempts import FinalAttempt, LocatedAttempt, TaskFields
from windrow.stats.medians import Medians
from windrow.stats.spread import finite
from windrow.store.line_positions import LinePosition, LinePositions


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all replies of a rollout, over the `n` rollouts that ran to an end."""

    n: int
    mean: float | None
    max: int | None


class GroupMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One task: its `rollouts`, and the rewards of the `n` graded ones."""

    key: str
    digest: str
    index: int
    group: str
    rollouts: int
    n: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    median: float | None
    zero_variance: bool  # two rewards or more, all the same
    pass_rate: float | None
    mean_prompt_tokens: float
    mean_completion_tokens: float
    reply_tokens: Lengths


class TaskNames(msgspec.Struct, gc=False):
    """The names of a task, from any line of its rollouts."""

    group: str
    task: TaskFields


PIECE_TASKS = 1024
ENDED = ("completed", "truncated")

decode_task_names = msgspec.json.Decoder(TaskNames).decode

ReadNames = Callable[[LinePosition], TaskNames]


class TaskTable:
    """One row per task. Names are not held in memory: they are read from one of the task's lines when needed."""

    def __init__(self, names: ReadNames) -> None:
        self._names = names
        self._positions = LinePositions()
        self._indexes = array("Q")
        self._rollouts = array("I")
        self._graded = array("I")
        self._means = array("d")  # of the rewards
        self._squares = array("d")  # of the rewards' distances from their mean
        self._lows = array("d")
        self._highs = array("d")
        self._prompt_tokens = array("Q")
        self._completion_tokens = array("Q")
        self._ended = array("I")
        self._ended_tokens = array("Q")
        self._longest = array("Q")
        self._medians = Medians()

    def __len__(self) -> int:
        return len(self._indexes)

    def groups(self) -> Iterator[str]:
        return (self._names(position).group for position in self._positions)

    def add(self, rows: Sequence[int], attempts: Sequence[LocatedAttempt], rewards: Counted) -> None:
        """Count attempts and their rewards. A new task gets the next row."""
        for row, (position, line) in zip(rows, attempts, strict=True):
            if row == len(self._indexes):
                self._open(position, line)
            tokens = line.usage.completion_tokens
            self._rollouts[row] += 1
            self._prompt_tokens[row] += line.usage.prompt_tokens
            self._completion_tokens[row] += tokens
            if line.status in ENDED:
                self._ended[row] += 1
                self._ended_tokens[row] += tokens
                if tokens > self._longest[row]:
                    self._longest[row] = tokens
        for (row, reward), count in rewards.items():
            self._grade(row, reward, count)

    def mean(self, row: int) -> float | None:
        """The mean of a task's rewards."""
        return finite(self._means[row]) if self._graded[row] else None

    def _grade(self, row: int, reward: float, count: int) -> None:
        self._medians.add(row, reward, count)
        self._graded[row] += count
        step = reward - self._means[row]
        self._means[row] += step * (count / self._graded[row])
        self._squares[row] += count * (step * (reward - self._means[row]))
        if reward < self._lows[row]:
            self._lows[row] = reward
        if reward > self._highs[row]:
            self._highs[row] = reward

    def entries(self, rewards: Clusters) -> Iterator[GroupMetrics]:
        """In the order of (task.index, group)."""
        for row, names in self._ordered():
            yield self._entry(row, names, rewards[row].passed)

    def _open(self, position: LinePosition, line: FinalAttempt) -> None:
        self._positions.append(position)
        self._indexes.append(line.task.index)
        for counts in (
            self._rollouts,
            self._graded,
            self._prompt_tokens,
            self._completion_tokens,
            self._ended,
            self._ended_tokens,
            self._longest,
        ):
            counts.append(0)
        self._medians.open()
        self._means.append(0.0)
        self._squares.append(0.0)
        self._lows.append(math.inf)
        self._highs.append(-math.inf)

    def _ordered(self) -> Iterator[tuple[int, TaskNames]]:
        """The rows with their names, sorted one piece at a time."""
        pieces: dict[int, array[int]] = {}
        for row, index in enumerate(self._indexes):
            pieces.setdefault(index // PIECE_TASKS, array("I")).append(row)
        for number in sorted(pieces):
            rows = [(row, self._names(self._positions[row])) for row in pieces.pop(number)]
            yield from sorted(rows, key=lambda entry: (entry[1].task.index, entry[1].group))

    def _entry(self, row: int, names: TaskNames, passed: int) -> GroupMetrics:
        n, rollouts = self._graded[row], self._rollouts[row]
        squares = self._squares[row]
        return GroupMetrics(
            key=names.task.key,
            digest=names.task.digest,
            index=self._indexes[row],
            group=names.group,
            rollouts=rollouts,
            n=n,
            mean=self.mean(row),
            std=math.sqrt(squares / (n - 1)) if n > 1 and math.isfinite(squares) else None,
            min=finite(self._lows[row]),
            max=finite(self._highs[row]),
            median=self._medians.median(row),
            zero_variance=n > 1 and self._lows[row] == self._highs[row],
            pass_rate=passed / n if n else None,
            mean_prompt_tokens=self._prompt_tokens[row] / rollouts,
            mean_completion_tokens=self._completion_tokens[row] / rollouts,
            reply_tokens=self._lengths(row),
        )

    def _lengths(self, row: int) -> Lengths:
        ended = self._ended[row]
        mean = self._ended_tokens[row] / ended if ended else None
        return Lengths(n=ended, mean=mean, max=self._longest[row] if ended else None)
