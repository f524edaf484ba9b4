"""Sums over the final attempts of a run, or of a part of it. Memory grows with tasks, not with rollouts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from windrow.records import Usage, is_done
from windrow.stats.clusters import Clusters, Counted, Groups, Rows, Variety
from windrow.stats.lines import Line
from windrow.stats.majority import Majority, Votes

PASS_REWARD = 1.0


class Tally:
    """A rollout passes from `pass_reward` on."""

    def __init__(self, pass_reward: float) -> None:
        self.pass_reward = pass_reward
        self.status: Counter[str] = Counter()
        self.stop: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.grade: Counter[str] = Counter()
        self.rewards = Clusters()
        self._variety = Variety()
        self._votes = Votes()
        self.scores: dict[str, Clusters] = {}
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        self.cost: float | None = None
        self.rollouts = self.done = 0
        self.seconds = self.policy_seconds = 0.0
        self.first, self.last = float("inf"), 0.0
        self._rows = Rows()

    @property
    def tasks(self) -> int:
        return len(self._rows)

    def groups(self) -> Groups:
        return self._variety.groups()

    def majority(self) -> Majority | None:
        return self._votes.majority()

    def add(self, lines: Sequence[Line]) -> list[int]:
        """Count lines, many at a time for speed. Returns the row of each one's task: tasks are numbered as they come up."""
        rows = self._rows.rows([line.group for line in lines])
        self.rollouts += len(lines)
        self.status.update([line.status for line in lines])
        self.stop.update([line.stop for line in lines])
        self.grade.update([line.grade for line in lines])
        self.errors.update([f"{line.error.owner}/{line.error.kind}" for line in lines if line.error])
        rewards = counted_rewards(rows, lines)
        self.rewards.add(rewards, pass_from=self.pass_reward)
        self._variety.add(rewards)
        self._votes.add(rows, lines, pass_from=self.pass_reward)
        self._score(rows, lines)
        self._spend([line.usage for line in lines])
        self._time(lines)
        return rows

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            cost=self.cost,
        )

    def _score(self, rows: Sequence[int], lines: Sequence[Line]) -> None:
        found: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for row, line in zip(rows, lines, strict=True):
            for name, score in line.scores.items():
                found[name].append((row, score.value))
        for name, values in found.items():
            if name not in self.scores:
                self.scores[name] = Clusters()
            self.scores[name].add(Counter(values))

    def _spend(self, usages: Sequence[Usage]) -> None:
        self.prompt_tokens += sum([usage.prompt_tokens for usage in usages])
        self.completion_tokens += sum([usage.completion_tokens for usage in usages])
        self.cached_tokens += sum([usage.cached_tokens for usage in usages])
        if costs := [usage.cost for usage in usages if usage.cost is not None]:
            self.cost = (self.cost or 0.0) + sum(costs)

    def _time(self, lines: Sequence[Line]) -> None:
        timings = [line.timing for line in lines]
        self.first = min([self.first, *[timing.started_at for timing in timings]])
        self.last = max([self.last, *[timing.started_at + timing.total for timing in timings]])
        done = [line.timing for line in lines if is_done(line.status, line.reason)]
        self.done += len(done)
        self.seconds += sum([timing.total for timing in done])
        self.policy_seconds += sum([timing.policy for timing in done])


def counted_rewards(rows: Sequence[int], lines: Sequence[Line]) -> Counted:
    """How often each reward came up in each row."""
    pairs = zip(rows, lines, strict=True)
    return Counter([(row, line.reward) for row, line in pairs if line.reward is not None])
