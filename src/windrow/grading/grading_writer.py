"""Writing gradings to the log, and counting them once they are durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from windrow.records import Grading

OnDurable = Callable[[Sequence[Grading]], None]


class GradingLog(Protocol):
    """Where gradings go. `commit` returns when they are durable."""

    async def commit(self, gradings: Sequence[Grading]) -> None: ...


class UnstoredGradings:
    """The log of a run that is not stored."""

    async def commit(self, gradings: Sequence[Grading]) -> None:
        return None


class GradingWriter:
    """Gradings on their way to the log, `batch_size` of them in one write; `on_durable` counts those that are there."""

    def __init__(self, log: GradingLog, on_durable: OnDurable, *, batch_size: int) -> None:
        self._log = log
        self._on_durable = on_durable
        self._batch_size = batch_size
        self._batch: list[Grading] = []

    async def add(self, grading: Grading, *, at_once: bool) -> None:
        """Take a grading. If `at_once`, or if the batch is full, return when the whole batch is durable."""
        self._batch.append(grading)
        if at_once or len(self._batch) >= self._batch_size:
            await self.write()

    async def write(self) -> None:
        """Write the batch, and return when it is durable."""
        gradings, self._batch = self._batch, []
        if gradings:
            await self._log.commit(gradings)
            self._on_durable(gradings)
