"""The backlog: how many attempts may wait between their end and their delivery. Where it is full, episodes wait too."""

from __future__ import annotations

import asyncio
from collections import deque


class Backlog:
    """A semaphore that is released by the batch.

    `asyncio.Semaphore` walks past every waiter that it has already woken at each release, so a batch of four hundred costs
    tens of thousands of steps.
    """

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Wait until there is room, first come, first served, and take it."""
        if self._free:
            self._free -= 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # room was given before the cancellation came
                self.leave(1)
            raise

    def leave(self, count: int) -> None:
        """Give room back for `count`: those who wait get it first, and those who have stopped waiting are passed over."""
        while count and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
        self._free += count
