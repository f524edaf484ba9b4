"""User code that blocks, run beside the loop.

Its threads are daemons, and one that never returns is never waited for: it holds up neither the calls after it nor the
end of the process, as a thread of the interpreter's own pools would.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

AT_ONCE = min(32, (os.cpu_count() or 1) + 4)  # more only take the interpreter from the loop


async def in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """What the function returns or raises. One that nobody waits for any more runs on, and is not counted."""
    loop = asyncio.get_running_loop()
    gate = _gates.get(loop) or _gates.setdefault(loop, asyncio.Semaphore(AT_ONCE))
    async with gate:
        outcome: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                settle = partial(outcome.set_result, function(*args, **kwargs))
            except BaseException as problem:
                settle = partial(outcome.set_exception, _carried(problem))
            try:
                loop.call_soon_threadsafe(lambda: None if outcome.done() else settle())
            except RuntimeError:
                return  # the loop is closed: nobody waits

        _worker().jobs.put(work)
        return await outcome


class _Worker(threading.Thread):
    """Does jobs one after another, and stands by in between."""

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
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_idle.clear)  # threads do not survive a fork


def _carried(problem: BaseException) -> Exception:
    """sys.exit() in a scorer ends the scorer, not the run; and a future cannot carry StopIteration."""
    if isinstance(problem, Exception) and not isinstance(problem, StopIteration):
        return problem
    return RuntimeError(f"raised {problem!r}")
