"""Many gradings side by side: workers that take what is to be judged from one iterator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar

from windrow.engine.control import Control
from windrow.errors import WindrowError, first_of

T = TypeVar("T")


class GradingWorkers(Generic[T]):
    """At most `most` workers, which `judge` one item after the other and then call `after_each`.

    A stop lets each worker finish its item. A cancellation cuts `judge` short, but never `after_each`.
    """

    def __init__(
        self,
        items: Iterator[T],
        judge: Callable[[T], Awaitable[None]],
        after_each: Callable[[], Awaitable[None]],
        *,
        control: Control,
        most: int,
    ) -> None:
        self._items = items
        self._judge = judge
        self._after_each = after_each
        self._control = control
        self._most = most
        self._count = 0

    async def run(self, first: int) -> None:
        """Start `first` workers, and return when nothing is left to judge or the control has stopped them all."""
        try:
            async with asyncio.TaskGroup() as self._group:
                for _ in range(first):
                    self.start_another()
        except* WindrowError as problems:
            raise first_of(problems) from None

    def start_another(self) -> None:
        """Start one more worker, unless there are enough."""
        if self._count < self._most:
            self._count += 1
            self._group.create_task(self._work())

    async def _work(self) -> None:
        try:
            for item in self._items:
                if self._control.stopping:
                    return
                try:
                    with self._control.cancellable():
                        await self._judge(item)
                    await self._after_each()
                except asyncio.CancelledError:
                    if not self._control.absorb():
                        raise
        except BaseException:
            self._most = 0  # the group cancels the other workers, and would refuse a new one
            raise
