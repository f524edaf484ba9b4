"""Deadlines by the thousand, of which hardly any passes: those of one length share a timer.

`asyncio.timeout` makes a timer for each and takes it back; a model call's own costs more than its request is sent for.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Line:
    """The deadlines of one length, in the order in which they pass."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
        self.loop = loop
        self.limit_s = limit_s
        self.waiting: dict[Deadline, float] = {}
        self.timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Let those pass whose time has come; look again when the next one's does."""
        self.timer = None
        now = self.loop.time()
        for deadline, when in list(self.waiting.items()):
            if when > now:
                self.timer = self.loop.call_at(when, self.look)
                return
            deadline.pass_()


_lines: dict[float, _Line] = {}  # of the loop that runs


def _line(limit_s: float) -> _Line:
    loop = asyncio.get_running_loop()
    line = _lines.get(limit_s)
    if line is None or line.loop is not loop:
        line = _lines[limit_s] = _Line(loop, limit_s)
    return line


class Deadline:
    """`with Deadline(s):` does what `async with asyncio.timeout(s):` does."""

    __slots__ = ("_before", "_limit_s", "_line", "_passed", "_task")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._passed = False

    def __enter__(self) -> Deadline:
        self._line = line = _line(self._limit_s)
        task = asyncio.current_task(line.loop)
        assert task is not None, "a deadline is a task's"
        self._task = task
        self._before = task.cancelling()
        line.waiting[self] = when = line.loop.time() + self._limit_s
        if line.timer is None:
            line.timer = line.loop.call_at(when, line.look)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._line.waiting.pop(self, None)
        if self._passed and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError

    def expired(self) -> bool:
        return self._passed

    def pass_(self) -> None:
        del self._line.waiting[self]
        self._passed = True
        self._task.cancel()


class Begun(Generic[T]):
    """Work that has been begun: it has gone as far as it comes without waiting, often to its end."""

    __slots__ = ("_waits_for", "_work", "done", "result")

    def __init__(self, work: types.CoroutineType[Any, Any, T]) -> None:
        self._work = work
        self.done = False
        self.result: T
        try:
            self._waits_for = work.send(None)
        except StopIteration as finished:
            self.done, self.result = True, finished.value

    @types.coroutine
    def rest(self) -> Generator[Any, Any, T]:
        """What is left of it, to be awaited."""
        work = self._work
        step: Callable[[Any], Any]
        waits_for = self._waits_for
        try:
            while True:
                try:
                    step, given = work.send, (yield waits_for)
                except GeneratorExit:
                    raise
                except BaseException as problem:
                    step, given = work.throw, problem
                try:
                    waits_for = step(given)
                except StopIteration as finished:
                    result: T = finished.value
                    return result
        finally:
            work.close()
