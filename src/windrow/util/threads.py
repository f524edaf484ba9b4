"""Threads for user code that blocks.

They are daemons, and a call that never returns is not waited for: it delays neither later calls nor the end of the
process, as a thread of the interpreter's own pools would.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from windrow.util.deadlines import clock_stopped

T = TypeVar("T")

AT_ONCE = min(32, (os.cpu_count() or 1) + 4)  # more would only take the interpreter from the loop


async def in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call the function in a thread. After a cancellation it runs on, and does not count towards the limit `AT_ONCE`.

    While it waits for a thread, the time limit of the work stands still.
    """
    loop = asyncio.get_running_loop()
    semaphore = _semaphores.get(loop) or _semaphores.setdefault(loop, asyncio.Semaphore(AT_ONCE))
    with clock_stopped() if semaphore.locked() else nullcontext():
        await semaphore.acquire()
    try:
        outcome: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                settle = partial(outcome.set_result, function(*args, **kwargs))
            except BaseException as problem:
                settle = partial(outcome.set_exception, _as_exception(problem))
            try:
                loop.call_soon_threadsafe(lambda: None if outcome.done() else settle())
            except RuntimeError:
                return  # the loop is closed: nobody waits

        _worker().jobs.put(work)
        return await outcome
    finally:
        semaphore.release()


class _Worker(threading.Thread):
    """Does one job after another, and is idle in between."""

    def __init__(self) -> None:
        super().__init__(name="windrow-user-code", daemon=True)
        self.jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            self.jobs.get()()
            _idle.append(self)


def _worker() -> _Worker:
    try:
        return _idle.pop()
    except IndexError:
        return _Worker()


_idle: list[_Worker] = []
_semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_idle.clear)  # threads do not survive a fork


def _as_exception(problem: BaseException) -> Exception:
    """An exception that a future can hold: not StopIteration; nor SystemExit, which would end the run with the scorer."""
    if isinstance(problem, Exception) and not isinstance(problem, StopIteration):
        return problem
    return RuntimeError(f"raised {problem!r}")
