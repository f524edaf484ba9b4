"""metrics.json: what a run says in numbers, agent by agent and task by task; a pure function of the run's files.

A rate states its denominator, zeros included. A rollout without a reward is in no mean: a task of which nothing was
graded has an entry, and its mean is null. Nothing that is not a finite number is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from windrow.envs import BaseEnv
from windrow.errors import StoreError
from windrow.records import Grade, Owner, Status, Stop, encode
from windrow.stats.clusters import Groups
from windrow.stats.estimate import Mean, clustered_mean, pass_table
from windrow.stats.hooks import Hooks
from windrow.stats.lines import Line, final_lines
from windrow.stats.majority import Majority
from windrow.stats.spread import Spread, Values, finite
from windrow.stats.tally import PASS_REWARD, Tally, counted_rewards
from windrow.stats.tasktable import GroupMetrics, TaskTable, decode_named
from windrow.store.disk import Disk
from windrow.store.places import Place
from windrow.store.read import RunReader

METRICS = "metrics.json"
SCHEMA = 1
WRITE_BYTES = 1 << 18
_NO_GROUPS = b'"group_level_metrics": []'
_INDENT = b"\n" + b" " * 8

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
    majority: Majority | None
    groups: Groups
    aggregate: dict[str, dict[str, float]]


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


class Survey:
    """What one pass over a run has found: the metrics, and the entries of the tasks one at a time."""

    def __init__(self, reader: RunReader, agents: Mapping[str, _Agent]) -> None:
        self._reader = reader
        self._agents = agents
        self.metrics = Metrics(
            run=_name(reader),
            coverage=_coverage(reader, list(agents.values())),
            agents=[agents[name].entry(name) for name in sorted(agents)],
        )

    def groups(self, agent: str) -> Iterator[GroupMetrics]:
        """The `group_level_metrics` of an agent, which `metrics` leaves empty: they grow with the tasks."""
        with self._reader:
            yield from self._agents[agent].groups()

    def pieces(self) -> Iterator[bytes]:
        """metrics.json, piece by piece."""
        text = msgspec.json.format(encode(self.metrics), indent=2)
        start, *rest = text.split(_NO_GROUPS)  # no other empty array can have that name
        yield start
        for entry, after in zip(self.metrics.agents, rest, strict=True):
            opening = _NO_GROUPS.removesuffix(b"]")
            for group in self.groups(entry.agent):
                text = msgspec.json.format(encode(group), indent=2)
                yield opening + _INDENT + text.replace(b"\n", _INDENT)
                opening = b","
            yield b"\n      ]" + after
        yield b"\n"


def survey(
    run: str | Path,
    *,
    pass_reward: float = PASS_REWARD,
    envs: Mapping[str, type[BaseEnv]] | None = None,
    warn: Warn = lambda message: None,
) -> Survey:
    """Measure a run. `envs` are classes that cannot be found by name; a hook that raises is warned of.

    Memory grows with tasks, by some 240 bytes each where scorers read two answers to it; with rollouts only where an
    environment defines `aggregate`.
    """
    agents: dict[str, _Agent] = {}
    with RunReader(run) as reader:
        gradings = reader.gradings()
        hooks = Hooks(reader, gradings, envs or {}, warn)
        for lines in final_lines(reader, gradings):
            hooks.keep(lines)
            for name in {line.agent for _, line in lines}:
                if name not in agents:
                    agents[name] = _Agent(reader, pass_reward, reader.manifest.agents.get(name))
                agents[name].add([(place, line) for place, line in lines if line.agent == name])
        for name in sorted(agents):
            agents[name].aggregate = hooks.aggregate(name)
        return Survey(reader, agents)


def measure(run: str | Path, **options: Any) -> Metrics:
    """All of metrics.json at once. `options` are those of `survey`."""
    found = survey(run, **options)
    agents = [
        msgspec.structs.replace(entry, group_level_metrics=list(found.groups(entry.agent)))
        for entry in found.metrics.agents
    ]
    return msgspec.structs.replace(found.metrics, agents=agents)


def write_metrics(run: str | Path, found: Survey, disk: Disk | None = None) -> Path:
    """Put metrics.json into the run directory, whole or not at all."""
    path = Path(run) / METRICS
    try:
        (disk or Disk()).replace(path, _joined(found.pieces()))
    except OSError as problem:
        raise StoreError(f"cannot write {path}: {problem.strerror}") from None
    return path


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer, larger pieces."""
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        if len(waiting) >= WRITE_BYTES:
            yield bytes(waiting)
            waiting.clear()
    yield bytes(waiting)


class _Agent:
    """What is known of one agent's rollouts; `planned` are those of the last call."""

    def __init__(self, reader: RunReader, pass_reward: float, planned: int | None) -> None:
        self.tally = Tally(pass_reward)
        self.table = TaskTable(lambda place: decode_named(reader.line(place)))
        self.aggregate: dict[str, dict[str, float]] = {}
        self._planned = planned
        self._values: defaultdict[str, Values] = defaultdict(Values)

    def add(self, found: Sequence[tuple[Place, Line]]) -> None:
        lines = [line for _, line in found]
        rows = self.tally.add(lines)
        self.table.add(rows, found, counted_rewards(rows, lines))
        self._add_values(lines)

    def _add_values(self, lines: Sequence[Line]) -> None:
        values = self._values
        values["seconds"].add([line.timing.total for line in lines])
        usages = [line.usage for line in lines]
        values["usage/prompt_tokens"].add([usage.prompt_tokens for usage in usages])
        values["usage/completion_tokens"].add([usage.completion_tokens for usage in usages])
        values["usage/cached_tokens"].add([usage.cached_tokens for usage in usages])
        found: defaultdict[str, list[float]] = defaultdict(list)
        found["usage/cost"] = [usage.cost for usage in usages if usage.cost is not None]
        found["reward"] = [line.reward for line in lines if line.reward is not None]
        for line in lines:
            for name, score in line.scores.items():
                found["score/" + name].append(score.value)
            for name, value in line.metrics.items():
                found["metric/" + name].append(value)
        for name, numbers in found.items():
            if numbers:
                values[name].add(numbers)

    def groups(self) -> Iterator[GroupMetrics]:
        return self.table.entries(self.tally.rewards)

    def entry(self, name: str) -> AgentEntry:
        metrics = self._agent_metrics()
        return AgentEntry(
            agent=name,
            key_metrics=_key_metrics(metrics, done=self.tally.done, planned=self._planned),
            agent_metrics=metrics,
            group_level_metrics=[],
        )

    def _agent_metrics(self) -> AgentMetrics:
        tally = self.tally
        pass_at, pass_tasks = pass_table(tally.rewards)
        owners = dict.fromkeys(get_args(Owner), 0)
        for kind, count in tally.errors.items():
            owner = kind.partition("/")[0]
            owners[owner] = owners.get(owner, 0) + count
        return AgentMetrics(
            rollouts=tally.rollouts,
            tasks=tally.tasks,
            reward=clustered_mean(tally.rewards),
            spread={name: values.spread() for name, values in sorted(self._values.items())},
            status=_rates(tally.status, get_args(Status), tally.rollouts),
            stop=_rates(tally.stop, get_args(Stop), tally.rollouts),
            grade=_rates(tally.grade, get_args(Grade), tally.rollouts),
            errors=_rates(owners, (), tally.rollouts),
            error_kinds=dict(tally.errors.most_common()),
            pass_reward=tally.pass_reward,
            pass_at=pass_at,
            pass_tasks=pass_tasks,
            majority=tally.majority(),
            groups=tally.groups(),
            aggregate=self.aggregate,
        )


def _key_metrics(metrics: AgentMetrics, *, done: int, planned: int | None) -> dict[str, float | None]:
    """The mean reward with its interval, pass@k, majority@k, and how much of what was planned they rest on."""
    planned = max(planned or 0, metrics.rollouts)  # an earlier call may have planned more than the last one
    key: dict[str, float | None] = {"rollouts": metrics.rollouts, "coverage": done / planned}
    if metrics.reward is not None:
        mean = metrics.reward
        key |= {"mean/reward": finite(mean.value), "low/reward": mean.low, "high/reward": mean.high}
        key |= {"n/reward": mean.n}
    if metrics.groups.n:
        key["zero_variance_groups"] = metrics.groups.zero_variance / metrics.groups.n
    key |= {f"pass@{k}": value for k, value in metrics.pass_at.items()}
    majority = metrics.majority.at if metrics.majority is not None else {}
    return key | {f"majority@{k}": value for k, value in majority.items()}


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


def _coverage(reader: RunReader, agents: Sequence[_Agent]) -> Coverage:
    tallies = [agent.tally for agent in agents]
    return Coverage(
        planned=sum(reader.manifest.agents.values()) or reader.manifest.counts.get("planned"),
        rollouts=sum(tally.rollouts for tally in tallies),
        done=sum(tally.done for tally in tallies),
        graded=sum(sum(tally.rewards.n) for tally in tallies),
        tasks=_tasks([agent.table for agent in agents]),
        attempts=reader.attempts,
        bad_lines=len(reader.bad_lines),
    )


def _tasks(tables: Sequence[TaskTable]) -> int:
    """How many tasks there are; one that several agents ran is one."""
    if len(tables) == 1:
        return len(tables[0])
    return len({group for table in tables for group in table.groups()})
