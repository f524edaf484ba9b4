"""Metrics beside those that every run has: `Env.aggregate`, which an environment computes from its own rollouts, and those
of the system whose rows a run has (`RowFormat.measures`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from windrow.envs import BaseEnv, Env, find_env
from windrow.errors import UsageError
from windrow.records import Rollout, Task
from windrow.registry import is_import_path
from windrow.stats.final_attempts import LocatedAttempt
from windrow.store.gradings import Gradings
from windrow.store.line_positions import LinePosition
from windrow.store.reader import RunReader
from windrow.tasks.row_formats import RowFormat, format_of

MayImport = Callable[[str], bool]


class Hooks:
    """Keeps the rollouts of environments that define `aggregate`, and calls it. Other rollouts are not kept."""

    def __init__(
        self,
        reader: RunReader,
        gradings: Gradings,
        envs: Mapping[str, type[BaseEnv]],
        may_import: MayImport,
        warn: Callable[[str], None],
    ) -> None:
        self._reader = reader
        self._may_import = may_import
        self._classes = envs
        self._warn = warn
        self._gradings = gradings
        self._envs: dict[str, type[BaseEnv] | None] = {}
        self._tasks: dict[str, Task] = {}
        self._kept: dict[str, dict[str, list[Rollout]]] = {}  # by agent and env
        self._row_format: RowFormat | None = None  # of the first row
        self._measured: dict[str, list[LinePosition]] | None = (
            None  # by agent: what the format's metrics are of
        )

    @property
    def envs(self) -> list[str]:
        """The environments that have come up, by name."""
        return sorted(self._envs)

    def keep(self, attempts: Sequence[LocatedAttempt]) -> None:
        """Keep the rollouts of those attempts whose environment has a hook."""
        for name in {line.env for _, line in attempts} - self._envs.keys():
            self._envs[name] = self._class_with_hook(name)
        self._keep_measured(attempts)
        if not any(self._envs.values()):
            return
        for position, line in attempts:
            if self._envs[line.env] is not None:
                rollout = self._light(self._reader.folded(self._reader.read(position), self._gradings))
                self._kept.setdefault(line.agent, {}).setdefault(line.env, []).append(rollout)

    def aggregate(self, agent: str) -> dict[str, dict[str, float]]:
        """The metrics of the hooks for one agent, by environment. A hook that fails gives a warning."""
        aggregates = self._by_row_format(agent)
        for name, rollouts in sorted(self._kept.get(agent, {}).items()):
            env = self._envs[name]
            assert env is not None
            try:
                aggregates[name] = self._checked(name, env.aggregate(rollouts))
            except Exception as problem:
                self._warn(f"aggregate() of env {name} raised {type(problem).__name__}: {problem}")
        return aggregates

    def _by_row_format(self, agent: str) -> dict[str, dict[str, float]]:
        """The metrics of the system that the rows are of. Rollouts are read once more, and none is held."""
        row_format = self._row_format
        positions = (self._measured or {}).get(agent)
        if row_format is None or not positions:
            return {}

        def rollouts() -> Iterator[Rollout]:
            for position in positions:
                rollout = self._reader.readable(position)
                if rollout is not None and row_format.is_row(rollout.task.data or {}):
                    yield self._reader.folded(rollout, self._gradings)

        return {
            name: self._checked(name, measure(rollouts())) for name, measure in row_format.measures.items()
        }

    def _keep_measured(self, attempts: Sequence[LocatedAttempt]) -> None:
        """Keep the positions of the attempts if the run's first row is of a system that has metrics of its own."""
        if self._measured is None and attempts:
            self._measured = {}
            first = self._reader.readable(attempts[0][0])
            self._row_format = format_of(first.task.data or {}) if first is not None else None
        if self._measured is None or self._row_format is None or not self._row_format.measures:
            return
        for position, line in attempts:
            self._measured.setdefault(line.agent, []).append(position)

    def _class_with_hook(self, name: str) -> type[BaseEnv] | None:
        """The class called `name` if it defines `aggregate`."""
        if name not in self._classes and not self._may_import(name):
            self._warn(
                f"aggregate() of env {name!r} is not asked: a line of the run names that code, and nothing vouches for it. "
                f"windrow stats RUN --write --trust-run imports it and asks"
            )
            return None
        try:
            env = self._classes.get(name) or find_env(name)
        except UsageError as problem:
            self._warn(f"aggregate() of env {name} is not asked: {problem}")
            return None
        return env if _defines_hook(env) else None

    def _light(self, rollout: Rollout) -> Rollout:
        """Without messages and turns; the rollouts of one task share its row."""
        task = self._tasks.setdefault(rollout.group, rollout.task)
        return msgspec.structs.replace(rollout, task=task, messages=(), turns=())

    def _checked(self, name: str, metrics: Mapping[str, float]) -> dict[str, float]:
        """The finite numbers of a hook's result; other values give warnings."""
        if not isinstance(metrics, Mapping):
            raise TypeError(f"it returned {type(metrics).__name__}; expected {{name: number}}")
        numbers: dict[str, float] = {}
        for key, value in metrics.items():
            try:
                number = float(value)
            except (TypeError, ValueError):
                number = math.nan
            if math.isfinite(number):
                numbers[str(key)] = number
            else:
                self._warn(
                    f"aggregate() of env {name}: {key!r} is {value!r}, no finite number, and is left out"
                )
        return numbers


def installed_only(name: str) -> bool:
    """The names that any reader of a run may look up: no code of the run's choice."""
    return not is_import_path(name)


def has_hook(name: str, envs: Mapping[str, type[BaseEnv]], may_import: MayImport) -> bool:
    """Whether the environment called `name` defines `aggregate`, or cannot be asked."""
    if name not in envs and not may_import(name):
        return True
    try:
        return _defines_hook(envs.get(name) or find_env(name))
    except UsageError:
        return True


def _defines_hook(env: type[BaseEnv]) -> bool:
    return env.aggregate.__func__ is not Env.aggregate.__func__  # type: ignore[attr-defined]
