"""A tracker module that records every call and fails where a test asks for it."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any


class FakeTable:
    def __init__(self, columns: list[str]) -> None:
        self.columns = columns
        self.data: list[list[Any]] = []

    def add_data(self, *row: Any) -> None:
        self.data.append(list(row))


class FakeConfig(dict[str, Any]):
    def update(self, values: dict[str, Any], allow_val_change: bool = False) -> None:  # type: ignore[override]
        super().update(values)


class FakeRun:
    def __init__(self, module: FakeWandb, **options: Any) -> None:
        self.options = options
        self.config = FakeConfig(options.get("config") or {})
        self.logged: list[dict[str, Any]] = []
        self.finished = 0
        self._module = module

    def log(self, values: dict[str, Any]) -> None:
        self._module.called("rollouts" if "Rollouts" in values else "metrics")
        self.logged.append(values)

    def finish(self) -> None:
        self.finished += 1
        self._module.called("finish")

    @property
    def metrics(self) -> dict[str, Any]:
        return {name: value for values in self.logged for name, value in values.items() if name != "Rollouts"}

    @property
    def table(self) -> FakeTable | None:
        return next((values["Rollouts"] for values in self.logged if "Rollouts" in values), None)

    @property
    def rollouts(self) -> list[dict[str, Any]]:
        return [json.loads(row[0]) for row in self.table.data] if self.table is not None else []

    def everything(self) -> str:
        """All that it was given, as text."""
        table = self.table.data if self.table is not None else []
        return json.dumps([self.options.get("config"), self.config, self.metrics, table], default=str)


class _Settings:
    console = silent = disable_git = None  # some of what `wandb.Settings` knows

    def __init__(self, **settings: Any) -> None:
        self.given = settings


class FakeWandb(types.ModuleType):
    """`script` is what a call does instead: raise, hang, look around; by call: init, metrics, rollouts, finish."""

    Settings = _Settings
    Table = FakeTable

    def __init__(self, **script: Callable[[], None]) -> None:
        super().__init__("wandb")
        self.script = script
        self.run: FakeRun | None = None
        self.runs: list[FakeRun] = []

    def called(self, name: str) -> None:
        self.script.get(name, lambda: None)()

    def init(self, **options: Any) -> FakeRun:
        self.called("init")
        self.runs.append(FakeRun(self, **options))
        return self.runs[-1]
