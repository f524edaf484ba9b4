"""metrics.json: the numbers of a run by agent and by task. They are a pure function of the run's files.

A rate states its denominator, zeros included. A rollout without a reward is in no mean: a task without graded rollouts
has an entry whose mean is null. Only finite numbers are written.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from windrow.envs import BaseEnv
from windrow.errors import StoreError
from windrow.records import Grade, Owner, Status, Stop, encode
from windrow.stats.cache import States, log_states, read_cache, settings_of, write_cache
from windrow.stats.env_aggregates import Hooks, MayImport, has_hook, installed_only
from windrow.stats.estimate import clustered_mean, pass_table
from windrow.stats.final_attempts import FinalAttempt, LocatedAttempt
from windrow.stats.schema import (
    METRICS,
    AgentEntry,
    AgentMetrics,
    Coverage,
    Metrics,
    Rates,
    RunName,
    Stamp,
    Totals,
)
from windrow.stats.spread import Values, finite
from windrow.stats.summary import Stats, count_totals, stats_of
from windrow.stats.tally import PASS_REWARD, AgentPart, Tally, counted_rewards
from windrow.stats.task_table import GroupMetrics, TaskTable, decode_task_names
from windrow.store.reader import RunReader
from windrow.util.disk import Disk

__all__ = ["METRICS", "AgentEntry", "Metrics", "measure", "measure_run", "unchanged_metrics", "write_metrics"]

WRITE_BYTES = 1 << 18
_NO_GROUPS = b'"group_level_metrics": []'
_INDENT = b"\n" + b" " * 8

Warn = Callable[[str], None]


class RunMetrics:
    """The metrics of a run as measured in one pass, and the entries of its tasks one at a time."""

    def __init__(
        self, reader: RunReader, totals: Totals, agents: Mapping[str, _Agent], envs: list[str], logs: States
    ) -> None:
        self._reader = reader
        self._agents = agents
        self._logs = logs
        stamp = Stamp(
            pass_reward=totals.pass_reward,
            logs={name: state.size for name, state in logs.items()},
            settings=settings_of(reader),
            envs=envs,
        )
        self.metrics = Metrics(
            stamp=stamp,
            run=_name(reader),
            coverage=_coverage(reader, list(agents.values())),
            summary=totals,
            agents=[agents[name].entry(name) for name in sorted(agents)],
        )

    @property
    def stats(self) -> Stats:
        """The statistics that `summarise` gives."""
        return stats_of(self._reader, self.metrics.summary)

    def write(self, run: Path, disk: Disk) -> None:
        """Put metrics.json into the run directory, whole or not at all, and metrics.cache beside it."""
        disk.replace(run / METRICS, _joined(self.pieces()))
        if self._reader.unread_gradings:  # every reader is to be warned of these
            return
        with contextlib.suppress(OSError):  # it only saves time
            write_cache(run, self.metrics, self._logs, disk)

    def groups(self, agent: str) -> Iterator[GroupMetrics]:
        """The `group_level_metrics` of an agent. `metrics` leaves them empty, since they grow with the tasks."""
        with self._reader:
            yield from self._agents[agent].groups()

    def pieces(self) -> Iterator[bytes]:
        """The bytes of metrics.json, piece by piece."""
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


def measure_run(
    run: str | Path,
    *,
    pass_reward: float = PASS_REWARD,
    envs: Mapping[str, type[BaseEnv]] | None = None,
    may_import: MayImport = installed_only,
    warn: Warn = lambda message: None,
) -> RunMetrics:
    """Measure a run. `envs` are classes that the caller has, by name; a hook that raises gives a warning.

    Lines name their environments: `may_import` says which names are looked up. The hooks of others are left out with a warning.

    Memory grows by some 240 bytes per task where scorers read two answers to it. It grows with rollouts only where an
    environment defines `aggregate`.
    """
    with RunReader(run) as reader:
        logs = log_states(reader.folder)
        gradings = reader.gradings()
        hooks = Hooks(reader, gradings, envs or {}, may_import, warn)
        details = _Details(reader, hooks)
        totals = count_totals(reader, gradings, pass_reward, details)
        for name in sorted(details.agents):
            details.agents[name].aggregate = hooks.aggregate(name)
        return RunMetrics(reader, totals, details.agents, hooks.envs, logs)


def unchanged_metrics(
    run: str | Path,
    *,
    pass_reward: float = PASS_REWARD,
    envs: Mapping[str, type[BaseEnv]] | None = None,
    may_import: MayImport = installed_only,
) -> Metrics | None:
    """The metrics that `measure_run` would give, without the tasks, if metrics.json is known to hold them; else None.

    The result of an environment's own hook may depend on anything: where one is defined, the run is measured again.
    """
    metrics = read_cache(RunReader(run), pass_reward)
    if metrics is None or any(has_hook(name, envs or {}, may_import) for name in metrics.stamp.envs):
        return None
    return metrics


def measure(run: str | Path, **options: Any) -> Metrics:
    """All of metrics.json at once. `options` are those of `measure_run`."""
    measured = measure_run(run, **options)
    agents = [
        msgspec.structs.replace(entry, group_level_metrics=list(measured.groups(entry.agent)))
        for entry in measured.metrics.agents
    ]
    return msgspec.structs.replace(measured.metrics, agents=agents)


def write_metrics(run: str | Path, measured: RunMetrics, disk: Disk | None = None) -> Path:
    """Put metrics.json into the run directory, whole or not at all."""
    path = Path(run) / METRICS
    try:
        measured.write(Path(run), disk or Disk())
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


class _Details:
    """The numbers of metrics.json that the totals do not hold, by agent; observes `count_totals`."""

    def __init__(self, reader: RunReader, hooks: Hooks) -> None:
        self.agents: dict[str, _Agent] = {}
        self._reader = reader
        self._hooks = hooks

    def add(self, attempts: Sequence[LocatedAttempt], parts: Sequence[AgentPart]) -> None:
        self._hooks.keep(attempts)
        for part in parts:
            if part.agent not in self.agents:
                planned = self._reader.manifest.agents.get(part.agent)
                self.agents[part.agent] = _Agent(self._reader, part.tally, planned)
            self.agents[part.agent].add(part.attempts, part.rows)


class _Agent:
    """The details of one agent's rollouts; `planned` are those of the last call."""

    def __init__(self, reader: RunReader, tally: Tally, planned: int | None) -> None:
        self.tally = tally
        self.table = TaskTable(lambda position: decode_task_names(reader.line(position)))
        self.aggregate: dict[str, dict[str, float]] = {}
        self._planned = planned
        self._values: defaultdict[str, Values] = defaultdict(Values)

    def add(self, attempts: Sequence[LocatedAttempt], rows: Sequence[int]) -> None:
        """Count what the tally does not; `rows` are those of the tasks in the tally."""
        lines = [line for _, line in attempts]
        self.table.add(rows, attempts, counted_rewards(rows, lines))
        self._add_values(lines)

    def _add_values(self, lines: Sequence[FinalAttempt]) -> None:
        values = self._values
        values["seconds"].add([line.timing.total for line in lines])
        usages = [line.usage for line in lines]
        values["usage/prompt_tokens"].add([usage.prompt_tokens for usage in usages])
        values["usage/completion_tokens"].add([usage.completion_tokens for usage in usages])
        values["usage/cached_tokens"].add([usage.cached_tokens for usage in usages])
        optional: defaultdict[str, list[float]] = defaultdict(list)
        optional["usage/cost"] = [usage.cost for usage in usages if usage.cost is not None]
        optional["reward"] = [line.reward for line in lines if line.reward is not None]
        for line in lines:
            for name, score in line.scores.items():
                optional["score/" + name].append(score.value)
            for name, value in line.metrics.items():
                optional["metric/" + name].append(value)
        for name, numbers in optional.items():
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
