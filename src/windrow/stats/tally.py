"""Sums over the final attempts of a run or of one of its agents. Memory grows with tasks, not with rollouts."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from windrow.records import OPPONENT, Usage, is_done
from windrow.stats.clusters import Clusters, Counted, GroupNumbers, GroupVariety, Variety
from windrow.stats.final_attempts import FinalAttempt, LocatedAttempt
from windrow.stats.majority import Majority, Votes

PASS_REWARD = 1.0


class Tally:
    """The sums over some rollouts. A rollout passes if its reward is at least `pass_reward`."""

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
        self._rows = GroupNumbers()

    @property
    def tasks(self) -> int:
        return len(self._rows)

    def groups(self) -> GroupVariety:
        return self._variety.groups()

    def majority(self) -> Majority | None:
        return self._votes.majority()

    def add(self, lines: Sequence[FinalAttempt]) -> list[int]:
        """Count attempts, many at a time for speed. Returns the row of each one's task; tasks are numbered as they come up."""
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

    def _score(self, rows: Sequence[int], lines: Sequence[FinalAttempt]) -> None:
        values_by_name: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for row, line in zip(rows, lines, strict=True):
            for name, score in line.scores.items():
                values_by_name[name].append((row, score.value))
        for name, values in values_by_name.items():
            if name not in self.scores:
                self.scores[name] = Clusters()
            self.scores[name].add(Counter(values))

    def _spend(self, usages: Sequence[Usage]) -> None:
        self.prompt_tokens += sum([usage.prompt_tokens for usage in usages])
        self.completion_tokens += sum([usage.completion_tokens for usage in usages])
        self.cached_tokens += sum([usage.cached_tokens for usage in usages])
        if costs := [usage.cost for usage in usages if usage.cost is not None]:
            self.cost = (self.cost or 0.0) + sum(costs)

    def _time(self, lines: Sequence[FinalAttempt]) -> None:
        timings = [line.timing for line in lines]
        self.first = min([self.first, *[timing.started_at for timing in timings]])
        self.last = max([self.last, *[timing.started_at + timing.total for timing in timings]])
        done = [line.timing for line in lines if is_done(line.status, line.reason)]
        self.done += len(done)
        self.seconds += sum([timing.total for timing in done])
        self.policy_seconds += sum([timing.policy for timing in done])


def counted_rewards(rows: Sequence[int], lines: Sequence[FinalAttempt]) -> Counted:
    """How often each reward came up in each row."""
    pairs = zip(rows, lines, strict=True)
    return Counter([(row, line.reward) for row, line in pairs if line.reward is not None])


class AgentPart(NamedTuple):
    """The attempts of one agent in a batch, with the rows of their tasks in the agent's tally."""

    agent: str
    tally: Tally
    attempts: Sequence[LocatedAttempt]
    rows: list[int]


class Tallies:
    """A tally for all agents but opponents, one for opponents, and with `by_agent` one for each agent."""

    def __init__(self, pass_reward: float, *, by_agent: bool = True) -> None:
        self.agents: dict[str, Tally] = {}
        self._pass_reward = pass_reward
        self._by_agent = by_agent
        self._shared: Tally | None = None  # of several agents; with a single agent, its tally serves for all
        self._has_seats = False
        self._later_seats = 0  # of episodes that are done: every seat but the first

    @property
    def all_agents(self) -> Tally:
        """The tally of all agents but opponents."""
        single = (tally for name, tally in self.agents.items() if name != OPPONENT)
        return self._shared or next(single, None) or Tally(self._pass_reward)

    @property
    def opponents(self) -> Tally:
        return self.agents.get(OPPONENT) or Tally(self._pass_reward)

    @property
    def episodes(self) -> int | None:
        """How many episodes are done; None where no episode has several rollouts."""
        return self.all_agents.done + self.opponents.done - self._later_seats if self._has_seats else None

    def add(self, attempts: Sequence[LocatedAttempt]) -> list[AgentPart]:
        """Count a batch of attempts, and return it split by agent."""
        lines = [line for _, line in attempts]
        if {line.seat for line in lines} - {None}:
            self._has_seats = True
            self._later_seats += sum(bool(line.seat) and line.done for line in lines)
        parts = self._split(attempts)
        self._share(parts)
        if self._shared is not None:
            self._shared.add([line for line in lines if not line.opponent])
        for name in parts.keys() - self.agents.keys():
            self.agents[name] = Tally(self._pass_reward)
        return [self._count(self.agents[name], name, part) for name, part in parts.items()]

    @staticmethod
    def _count(tally: Tally, name: str, attempts: Sequence[LocatedAttempt]) -> AgentPart:
        return AgentPart(name, tally, attempts, tally.add([line for _, line in attempts]))

    def _split(self, attempts: Sequence[LocatedAttempt]) -> dict[str, Sequence[LocatedAttempt]]:
        """The attempts by agent; without `by_agent`, all agents but opponents share one name."""

        def name(agent: str) -> str:
            return agent if self._by_agent or agent == OPPONENT else ""

        names = {agent: name(agent) for agent in {line.agent for _, line in attempts}}
        if len(set(names.values())) == 1:
            return {next(iter(names.values())): attempts}
        parts: dict[str, Sequence[LocatedAttempt]] = {
            part: [each for each in attempts if names[each[1].agent] == part] for part in set(names.values())
        }
        return parts

    def _share(self, parts: Iterable[str]) -> None:
        """Once there is a second agent, start the tally of all agents from a copy of the first one's."""
        if self._shared is None and len({*self.agents, *parts} - {OPPONENT}) > 1:
            self._shared = copy.deepcopy(self.all_agents)
