"""Guards around user coroutines: one that holds up the loop is named, one that ignores its cancellation is left behind.

An environment, an agent, a tool or a scorer shares the loop with every other episode. Each of its steps between two
`await`s is timed. The user is warned of one that holds up the loop twice, by name and only once: the first time may be
an import. A cancelled coroutine gets a moment to clean up; if it still goes on, it is closed.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

from windrow.util.deadlines import is_expiry

T = TypeVar("T")

BLOCKED_S = 0.25  # of the loop's time, in one go
FORGIVEN = 1  # times
CANCEL_GRACE_S = 1.0  # for what a cancelled coroutine still does


class Watch:
    """Counts which user code held up the loop of one run, and warns of it."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._blocks: Counter[str] = Counter()
        self._noticed_at = 0.0

    def spent(self, who: str, began: float, advice: str) -> None:
        """`who` held the loop since `began`, which was too long. A block noticed in an inner coroutine counts only once."""
        now = time.monotonic()
        if self._noticed_at > began:
            return
        self._noticed_at = now
        self._blocks[who] += 1
        if self._blocks[who] == FORGIVEN + 1:
            self._warn(f"{who} held up every other rollout for {now - began:.2f} s; {advice}")

    def blocks(self, who: str) -> bool:
        return self._blocks[who] > FORGIVEN


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


def watch_with(warn: Callable[[str], None]) -> None:
    """From now on, in this task and in those that it starts, `warn` is called for code that holds up the loop."""
    _watch.set(Watch(warn))


def blocks(who: str) -> bool:
    """Whether `who` is known to hold up the loop."""
    watch = _watch.get()
    return watch is not None and watch.blocks(who)


def is_ours(kind: type) -> bool:
    """Whether a class comes with Windrow."""
    return kind.__module__.startswith("windrow.")


def guarded_method(owner: Any, method: str, work: Awaitable[T]) -> Awaitable[T]:
    """A call of a method of a user's object, under guard. Windrow's own objects need none."""
    kind = type(owner)
    if is_ours(kind):
        return work
    return guarded(work, f"{kind.__module__}:{kind.__qualname__}.{method}()")


def guarded(
    work: Awaitable[T], who: str, advice: str = "what blocks belongs into `await asyncio.to_thread(…)`"
) -> Awaitable[T]:
    return _driven(work, who, advice) if inspect.iscoroutine(work) else work


@types.coroutine
def _driven(work: types.CoroutineType[Any, Any, T], who: str, advice: str) -> Generator[Any, Any, T]:
    """`await work`, step by step."""
    step: Callable[[Any], Any] = work.send
    sent: Any = None
    ending: _CancelledEnd | None = None
    cancelling = _cancelling()
    try:
        while True:
            began = time.monotonic()
            try:
                waits_for = step(sent)
            except StopIteration as finished:
                result: T = finished.value
                return result
            finally:
                if time.monotonic() - began > BLOCKED_S and (watch := _watch.get()) is not None:
                    watch.spent(who, began, advice)
            if ending is not None and ending.over:
                raise ending.cancelled
            try:
                sent = yield waits_for
                step = work.send
            except asyncio.CancelledError as cancelled:
                if ending is None or ending.averted:
                    ending = _CancelledEnd(cancelled, cancelling)
                ending.cancelled_again()
                step, sent = work.throw, cancelled
            except GeneratorExit:
                raise
            except BaseException as problem:
                step, sent = work.throw, problem
    finally:
        if ending is not None:
            ending.clear()
        _close(work)


def _cancelling() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class _CancelledEnd:
    """The end of a cancelled coroutine: it has a moment to clean up, then it is cancelled again and left.

    A cancellation that has been taken back by then was the coroutine's own, such as that of an `asyncio.timeout` in it:
    it goes on. A deadline of ours cannot be taken back.
    """

    def __init__(self, cancelled: asyncio.CancelledError, cancelling: int) -> None:
        """`cancelling`: the number of cancellations of the task before the coroutine began."""
        self.cancelled = cancelled
        self.over = False
        self.averted = False
        self._cancelling = cancelling
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(CANCEL_GRACE_S, self._again)
        self._ours = 0

    def cancelled_again(self) -> None:
        self.over = self._ours > 0

    def clear(self) -> None:
        self._timer.cancel()
        for _ in range(self._ours):
            if self._task is not None:
                self._task.uncancel()

    def _again(self) -> None:
        if self._task is None:
            return
        if self._task.cancelling() <= self._cancelling and not is_expiry(self.cancelled):
            self.averted = True
            return
        self._ours += 1
        self._task.cancel()


def _close(work: types.CoroutineType[Any, Any, Any]) -> None:
    try:
        work.close()
    except RuntimeError:
        pass  # it ignores even this; it is never resumed
