"""Cheap deadlines: those of one length share a timer, since thousands are set and hardly any expires.

Every model call and every scorer has a deadline. `asyncio.timeout` starts and cancels a timer for each, which costs more
than sending the request does. Deadlines of one length expire in the order in which they began, so one timer, set for the
oldest of them, serves them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Deadline:
    """`with Deadline(s):` promises what `async with asyncio.timeout(s):` does.

    When the time is up, the task that entered the block is cancelled, and the block raises TimeoutError in place of that
    cancellation. A cancellation from elsewhere stays one. While the deadline is paused, no time passes: it goes on when
    each `pause` has had its `resume`.
    """

    __slots__ = ("_cancelling", "_expired", "_left_s", "_loop", "_paused", "_pauses", "_queue", "_task")

    def __init__(self, limit_s: float) -> None:
        self._left_s = limit_s
        self._expired = False
        self._paused = False
        self._pauses = 0

    def __enter__(self) -> Deadline:
        self._loop = loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None, "a deadline belongs to a task"
        self._task = task
        self._cancelling = task.cancelling()
        self._join(_queue_of(self._left_s, loop))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._paused = False
        self._queue.remove(self)
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError

    def expired(self) -> bool:
        return self._expired

    def pause(self) -> None:
        """Stop the clock. A deadline that has expired, or whose block was left, stays as it is."""
        self._pauses += 1
        expires_at = self._queue.remove(self)
        if expires_at is not None:
            self._left_s = expires_at - self._loop.time()
            self._paused = True

    def resume(self) -> None:
        self._pauses -= 1
        if self._paused and not self._pauses:
            self._paused = False
            # Other deadlines hardly ever have the same time left.
            self._join(_Queue(self._loop, self._left_s, shared=False))

    def expire(self) -> None:
        self._expired = True
        self._task.cancel(self)

    def _join(self, queue: _Queue) -> None:
        self._queue = queue
        queue.add(self)


_limit_of_work: ContextVar[Deadline | None] = ContextVar("limit_of_work", default=None)


@contextmanager
def limits_work(deadline: Deadline) -> Iterator[None]:
    """Inside, in this task and in those that it starts, `clock_stopped` stops this deadline."""
    token = _limit_of_work.set(deadline)
    try:
        yield
    finally:
        _limit_of_work.reset(token)


@contextmanager
def clock_stopped() -> Iterator[None]:
    """Inside, the time limit of the work stands still: for waits that are not the work's own, such as for a free process."""
    deadline = _limit_of_work.get()
    if deadline is None:
        yield
        return
    deadline.pause()
    try:
        yield
    finally:
        deadline.resume()


def is_expiry(cancelled: asyncio.CancelledError) -> bool:
    """Whether this cancellation is a deadline's."""
    return bool(cancelled.args) and isinstance(cancelled.args[0], Deadline)


class _Queue:
    """The deadlines of one length on one loop, oldest first.

    The timer is not stopped when a deadline is met: when it fires, it finds nothing to do or waits for the next deadline. The
    timer of a queue that is not shared is stopped: judges resume thousands of deadlines, each with another time left.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, *, shared: bool = True) -> None:
        self.loop = loop
        self._limit_s = limit_s
        self._shared = shared
        self._expires_at: dict[Deadline, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, deadline: Deadline) -> None:
        self._expires_at[deadline] = expires_at = self.loop.time() + self._limit_s
        if self._timer is None:
            self._timer = self.loop.call_at(expires_at, self._check)

    def remove(self, deadline: Deadline) -> float | None:
        """The time at which it would have expired; None if it has expired or is not in this queue."""
        if not self._shared and self._timer is not None:
            self._timer.cancel()
        return self._expires_at.pop(deadline, None)

    def _check(self) -> None:
        """Expire the deadlines whose time is up, then wait for the next one."""
        self._timer = None
        now = self.loop.time()
        while self._expires_at:
            oldest = next(iter(self._expires_at))
            if self._expires_at[oldest] > now:
                self._timer = self.loop.call_at(self._expires_at[oldest], self._check)
                return
            self.remove(oldest)
            oldest.expire()
        if _queues.get(self._limit_s) is self:
            del _queues[self._limit_s]


_queues: dict[float, _Queue] = {}  # by length; a loop replaces a queue of another loop


def _queue_of(limit_s: float, loop: asyncio.AbstractEventLoop) -> _Queue:
    queue = _queues.get(limit_s)
    if queue is None or queue.loop is not loop:
        queue = _queues[limit_s] = _Queue(loop, limit_s)
    return queue
