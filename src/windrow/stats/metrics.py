"""metrics.json: what a run says in numbers, agent by agent and task by task; a pure function of the run's files.

A rate states its denominator, zeros included. A rollout without a reward is in no mean: a task of which nothing was
graded has an entry, and its mean is null. Nothing that is not a finite number is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

import msgspec

from windrow.envs import Env
from windrow.errors import StoreError
from windrow.records import Grade, Owner, Status, Stop, encode
from windrow.stats.estimate import Mean, clustered_mean, pass_table
from windrow.stats.hooks import Hooks
from windrow.stats.lines import Line, final_lines
from windrow.stats.spread import Moments, Spread, Values, finite
from windrow.stats.tally import PASS_REWARD, Tally
from windrow.store.disk import Disk
from windrow.store.read import RunReader

METRICS = "metrics.json"
SCHEMA = 1

Warn = Callable[[str], None]


class RunName(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: str
    split: str | None
    behaviour: str
    grading: str | None


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """`rollouts` of `planned` were tried, `done` settled, `graded` have a reward. `planned` is the last call's."""

    planned: int | None
    rollouts: int
    done: int
    graded: int
    tasks: int
    attempts: int
    bad_lines: int


class Rates(msgspec.Struct, frozen=True):
    """How many of `n` rollouts, and which share, by name."""

    n: int
    count: dict[str, int]
    rate: dict[str, float]


class AgentMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """`spread` holds reward, score/NAME, metric/NAME, usage/NAME and seconds, each over the rollouts that have it.

    `errors` are by owner, `error_kinds` by owner/kind. `aggregate` is what each environment's own hook gave.
    """

    rollouts: int
    tasks: int
    reward: Mean | None
    spread: dict[str, Spread]
    status: Rates
    stop: Rates
    grade: Rates
    errors: Rates
    error_kinds: dict[str, int]
    pass_reward: float
    pass_at: dict[str, float]
    pass_tasks: int
    aggregate: dict[str, dict[str, float]]


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


class AgentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`key_metrics` is flat, for a table or a tracker."""

    agent: str
    key_metrics: dict[str, float | None]
    agent_metrics: AgentMetrics
    group_level_metrics: list[GroupMetrics]


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    run: RunName
    coverage: Coverage
    agents: list[AgentEntry]


def measure(
    run: str | Path,
    *,
    pass_reward: float = PASS_REWARD,
    envs: Mapping[str, type[Env]] | None = None,
    warn: Warn = lambda message: None,
) -> Metrics:
    """The metrics of a run. `envs` are classes that cannot be found by name; a hook that raises is warned of.

    Memory grows with tasks; with rollouts only where an environment defines `aggregate`.
    """
    agents: dict[str, _Agent] = {}
    with RunReader(run) as reader:
        gradings = reader.gradings()
        hooks = Hooks(reader, gradings, envs or {}, warn)
        for place, line in final_lines(reader, gradings):
            if line.agent not in agents:
                agents[line.agent] = _Agent(pass_reward)
            agents[line.agent].add(line)
            hooks.add(place, line.agent, line.env)
        planned = reader.manifest.agents
        entries = [
            agents[name].entry(name, planned.get(name), hooks.aggregate(name)) for name in sorted(agents)
        ]
        tallies = [agent.tally for agent in agents.values()]
        return Metrics(run=_name(reader), coverage=_coverage(reader, tallies), agents=entries)


def write_metrics(run: str | Path, metrics: Metrics, disk: Disk | None = None) -> Path:
    """Put metrics.json into the run directory, whole or not at all."""
    path = Path(run) / METRICS
    try:
        (disk or Disk()).replace(path, msgspec.json.format(encode(metrics), indent=2) + b"\n")
    except OSError as problem:
        raise StoreError(f"cannot write {path}: {problem.strerror}") from None
    return path


class _Agent:
    """What is known of one agent's rollouts."""

    def __init__(self, pass_reward: float) -> None:
        self.tally = Tally(pass_reward)
        self._values: defaultdict[str, Values] = defaultdict(Values)
        self._groups: dict[str, _Group] = {}

    def add(self, line: Line) -> None:
        self.tally.add(line)
        for name, value in _numbers(line):
            self._values[name].add(float(value))
        if line.group not in self._groups:
            self._groups[line.group] = _Group(line.task.key, line.task.index)
        self._groups[line.group].add(line)

    def entry(self, name: str, planned: int | None, aggregate: dict[str, dict[str, float]]) -> AgentEntry:
        metrics = self._metrics(aggregate)
        return AgentEntry(
            agent=name,
            key_metrics=_key_metrics(metrics, done=self.tally.done, planned=planned),
            agent_metrics=metrics,
            group_level_metrics=[
                group.entry(id, self.tally.rewards[id].passed if id in self.tally.rewards else 0)
                for id, group in sorted(self._groups.items(), key=lambda item: (item[1].index, item[0]))
            ],
        )

    def _metrics(self, aggregate: dict[str, dict[str, float]]) -> AgentMetrics:
        tally = self.tally
        pass_at, pass_tasks = pass_table(tally.rewards.values())
        owners = dict.fromkeys(get_args(Owner), 0)
        for kind, count in tally.errors.items():
            owner = kind.partition("/")[0]
            owners[owner] = owners.get(owner, 0) + count
        return AgentMetrics(
            rollouts=tally.rollouts,
            tasks=len(tally.tasks),
            reward=clustered_mean(tally.rewards.values()),
            spread={name: values.spread() for name, values in sorted(self._values.items())},
            status=_rates(tally.status, get_args(Status), tally.rollouts),
            stop=_rates(tally.stop, get_args(Stop), tally.rollouts),
            grade=_rates(tally.grade, get_args(Grade), tally.rollouts),
            errors=_rates(owners, (), tally.rollouts),
            error_kinds=dict(tally.errors.most_common()),
            pass_reward=tally.pass_reward,
            pass_at=pass_at,
            pass_tasks=pass_tasks,
            aggregate=aggregate,
        )


class _Group:
    """One task's rollouts."""

    def __init__(self, key: str, index: int) -> None:
        self.key = key
        self.index = index
        self._rollouts = self._prompt_tokens = self._completion_tokens = 0
        self._rewards = Moments()

    def add(self, line: Line) -> None:
        self._rollouts += 1
        self._prompt_tokens += line.usage.prompt_tokens
        self._completion_tokens += line.usage.completion_tokens
        if line.reward is not None:
            self._rewards.add(line.reward)

    def entry(self, id: str, passed: int) -> GroupMetrics:
        rewards = self._rewards
        return GroupMetrics(
            key=self.key,
            index=self.index,
            group=id,
            rollouts=self._rollouts,
            n=rewards.n,
            mean=finite(rewards.mean) if rewards.n else None,
            std=rewards.std,
            min=finite(rewards.low),
            max=finite(rewards.high),
            pass_rate=passed / rewards.n if rewards.n else None,
            mean_prompt_tokens=self._prompt_tokens / self._rollouts,
            mean_completion_tokens=self._completion_tokens / self._rollouts,
        )


def _numbers(line: Line) -> Iterable[tuple[str, float]]:
    """Every number of a rollout that is worth a mean, by name."""
    if line.reward is not None:
        yield "reward", line.reward
    for name, score in line.scores.items():
        yield f"score/{name}", score.value
    for name, value in line.metrics.items():
        yield f"metric/{name}", value
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "cost"):
        if (spent := getattr(line.usage, name)) is not None:
            yield f"usage/{name}", spent
    yield "seconds", line.timing.total


def _key_metrics(metrics: AgentMetrics, *, done: int, planned: int | None) -> dict[str, float | None]:
    """The mean reward with its interval, pass@k, and how much of what was planned they rest on."""
    planned = max(planned or 0, metrics.rollouts)  # an earlier call may have planned more than the last one
    key: dict[str, float | None] = {"rollouts": metrics.rollouts, "coverage": done / planned}
    if metrics.reward is not None:
        mean = metrics.reward
        key |= {"mean/reward": finite(mean.value), "low/reward": mean.low, "high/reward": mean.high}
        key |= {"n/reward": mean.n}
    return key | {f"pass@{k}": value for k, value in metrics.pass_at.items()}


def _rates(counts: Mapping[str, int], names: Iterable[str], n: int) -> Rates:
    """Over all of `names`, those that never came up too."""
    whole = {**dict.fromkeys(names, 0), **counts}
    return Rates(n, whole, {name: count / n for name, count in whole.items()})


def _name(reader: RunReader) -> RunName:
    manifest = reader.manifest
    return RunName(
        name=reader.path.resolve().name,
        source=manifest.source,
        split=manifest.split,
        behaviour=manifest.behaviour.hash,
        grading=manifest.grading.hash if manifest.grading else None,
    )


def _coverage(reader: RunReader, tallies: Sequence[Tally]) -> Coverage:
    return Coverage(
        planned=reader.manifest.counts.get("planned"),
        rollouts=sum(tally.rollouts for tally in tallies),
        done=sum(tally.done for tally in tallies),
        graded=sum(cluster.n for tally in tallies for cluster in tally.rewards.values()),
        tasks=len({task for tally in tallies for task in tally.tasks}),
        attempts=reader.attempts,
        bad_lines=len(reader.bad_lines),
    )
