"""Sums over the final attempts of a run, or of a part of it. Memory grows with tasks, not with rollouts."""

from __future__ import annotations

from collections import Counter

from windrow.records import Usage
from windrow.stats.estimate import Cluster
from windrow.stats.lines import Line

PASS_REWARD = 1.0


class Tally:
    """A rollout passes from `pass_reward` on."""

    def __init__(self, pass_reward: float) -> None:
        self.pass_reward = pass_reward
        self.status: Counter[str] = Counter()
        self.stop: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.grade: Counter[str] = Counter()
        self.tasks: set[str] = set()
        self.rewards: dict[str, Cluster] = {}
        self.scores: dict[str, dict[str, Cluster]] = {}
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        self.cost: float | None = None
        self.rollouts = self.done = 0
        self.seconds = self.policy_seconds = 0.0
        self.first, self.last = float("inf"), 0.0

    def add(self, line: Line) -> None:
        self.rollouts += 1
        self.status[line.status] += 1
        self.stop[line.stop] += 1
        self.grade[line.grade] += 1
        self.tasks.add(line.group)
        if line.error is not None:
            self.errors[f"{line.error.owner}/{line.error.kind}"] += 1
        if line.reward is not None:
            passed = line.reward >= self.pass_reward
            self.rewards.setdefault(line.group, Cluster()).add(line.reward, passed=passed)
        for name, score in line.scores.items():
            clusters = self.scores.setdefault(name, {})
            clusters.setdefault(line.group, Cluster()).add(score.value, passed=False)
        self._spend(line.usage)
        self.first = min(self.first, line.timing.started_at)
        self.last = max(self.last, line.timing.started_at + line.timing.total)
        if line.done:
            self.done += 1
            self.seconds += line.timing.total
            self.policy_seconds += line.timing.policy

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            cost=self.cost,
        )

    def _spend(self, usage: Usage) -> None:
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        self.cached_tokens += usage.cached_tokens
        if usage.cost is not None:
            self.cost = (self.cost or 0.0) + usage.cost
