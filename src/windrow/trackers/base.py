"""What a tracker is given, and what it does with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from windrow.records import Json

TABLE, COLUMN = "Rollouts", "Rollout"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A run as trackers name it. `config` is what run.json keeps: secrets redacted, `${VAR}` unexpanded.

    `rollouts` is how many there are, and the step at which the numbers stand.
    """

    name: str
    path: Path
    config: dict[str, Json]
    rollouts: int


class Tracker(Protocol):
    """Called in this order, in one thread. `start` may raise, then nothing else is called; `finish` always is, once."""

    def start(self, report: Report) -> None: ...
    def metrics(self, numbers: Mapping[str, float]) -> None: ...

    def rollouts(self, lines: Iterator[str]) -> None:
        """`lines` are rollouts as JSON text, for the table `Rollouts` with its column `Rollout`."""
        ...

    def finish(self) -> None: ...
