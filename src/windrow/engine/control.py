"""Control: how a run is stopped, from outside or by its own stop conditions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from windrow.records import Reason


class Control:
    """`stop` lets running episodes finish, `cancel` ends them and records that. The first reason given is kept."""

    def __init__(self) -> None:
        self.stopping = False
        self.cancelled = False
        self.why: str | None = None  # why the run stopped itself; None when somebody outside stopped it
        self.reason: Reason = "interrupted"  # what is recorded of the episodes that are cut
        self._cancellable: set[asyncio.Task[object]] = set()
        self._cut: Counter[asyncio.Task[object]] = Counter()  # cancelled by this control, not absorbed yet
        self._listeners: list[Callable[[], None]] = []

    def stop(self, why: str | None = None, reason: Reason = "interrupted") -> None:
        if not self.stopping:
            self.stopping, self.why, self.reason = True, why, reason
            self._notify()

    def cancel(self, why: str | None = None, reason: Reason = "interrupted") -> None:
        """End what is running. `reason` is what is recorded of it."""
        if not self.stopping:
            self.why, self.reason = why, reason
        self.stopping = self.cancelled = True
        for task in self._cancellable:
            self._cut[task] += 1
            task.cancel()
        self._notify()

    def listen(self, listener: Callable[[], None]) -> None:
        """`listener` is called whenever the run is stopped or cancelled."""
        self._listeners.append(listener)

    def cancellable(self) -> Cancellable:
        """What the current task does inside may be cut short by `cancel`; what it does outside may not."""
        return Cancellable(self._cancellable)

    def absorb(self) -> bool:
        """Whether the cancellation just caught was this control's own alone; if so the current task goes on.

        A task group that gives up (a full disk) cancels its tasks too, and that one is not to be absorbed.
        """
        task = asyncio.current_task()
        if task is None or task not in self._cut:
            return False
        others = task.cancelling()
        for _ in range(self._cut.pop(task)):
            others = task.uncancel()
        return not others

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


class Cancellable:
    __slots__ = ("_task", "_tasks")

    def __init__(self, tasks: set[asyncio.Task[object]]) -> None:
        self._tasks = tasks

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._tasks.add(task)

    def __exit__(self, *_: object) -> None:
        self._tasks.discard(self._task)
