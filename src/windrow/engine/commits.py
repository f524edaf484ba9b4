"""Commits: finished attempts go to disk in groups, and only then is anyone told.

Two tasks beside the episodes: one writes whatever has finished since its last write, one tells. A slow listener holds
up telling, not writing; where too much waits, `put` waits too, and with it the episodes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from windrow.engine.control import Control
from windrow.engine.world import Sink
from windrow.errors import StoreError
from windrow.records import Rollout
from windrow.tasks.plan import Slot


class Finished(NamedTuple):
    """An attempt that has ended, with a rollout for each of its seats. `settled`: its slot is not tried again in this
    call."""

    slot: Slot
    rollouts: tuple[Rollout, ...]
    settled: bool


Counted = Callable[[Finished], None]
Told = Callable[[Finished], Awaitable[None]]
Taken = Callable[[Finished], bool]


def nothing(finished: Finished) -> bool:
    return False


class Commits:
    """`counted` is called as soon as an attempt is durable; `told` is awaited after it, one at a time, unless it is `taken`.

    What is still to be graded takes its time: it is told beside the others.
    """

    def __init__(
        self,
        sink: Sink,
        control: Control,
        *,
        room: int,
        counted: Counted,
        told: Told,
        taken: Taken = nothing,
    ) -> None:
        self._sink = sink
        self._control = control
        self._room = asyncio.Semaphore(room)
        self._counted = counted
        self._told = told
        self._taken = taken
        self._finished: list[Finished] = []
        self._durable: deque[Finished] = deque()
        self._closed = False
        self._written = False  # everything is, and nothing more will come
        self._to_write = asyncio.Event()
        self._to_tell = asyncio.Event()

    async def put(self, finished: Finished) -> None:
        await self._room.acquire()
        self._finished.append(finished)
        self._to_write.set()

    def close(self) -> None:
        """No more will come; `write` and `tell` return when they are through."""
        self._closed = True
        self._to_write.set()

    async def write(self) -> None:
        while self._finished or not self._closed:
            if not self._finished:
                self._to_write.clear()
                await self._to_write.wait()
                continue
            batch, self._finished = self._finished, []
            await self._sink.commit(_rollouts(batch))
            for finished in batch:
                self._counted(finished)
                if self._taken(finished):
                    self._room.release()
                else:
                    self._durable.append(finished)
            if self._durable:
                self._to_tell.set()
        self._written = True
        self._to_tell.set()

    async def rescue(self) -> None:
        """Something else has ended the run: write what had finished by then, if that can still be written."""
        batch, self._finished = self._finished, []
        if batch:
            with contextlib.suppress(StoreError):  # the first problem is the one that is reported
                await self._sink.commit(_rollouts(batch))

    async def tell(self) -> None:
        async with asyncio.TaskGroup() as grading:
            while self._durable or not self._written:
                if not self._durable:
                    self._to_tell.clear()
                    await self._to_tell.wait()
                    continue
                finished = self._durable.popleft()
                if any(rollout.grade == "pending" for rollout in finished.rollouts):
                    grading.create_task(self._tell(finished))
                else:
                    await self._tell(finished)

    async def _tell(self, finished: Finished) -> None:
        try:
            with self._control.cancellable():
                await self._told(finished)
        except asyncio.CancelledError:
            if not self._control.absorb():
                raise
        finally:
            self._room.release()


def _rollouts(batch: list[Finished]) -> list[Rollout]:
    """What is written at once: the seats of an episode stand together, in their order."""
    return [rollout for finished in batch for rollout in finished.rollouts]
