"""Commits: finished attempts go to disk in batches; only then are they counted, and delivered to whoever listens.

Two tasks beside the episodes: one writes whatever has finished since its last write, one delivers. A slow listener holds
up deliveries, not writing; where too much waits, `CommitQueue.put` waits too, and with it the episodes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from windrow.engine.backlog import Backlog
from windrow.engine.context import Sink
from windrow.engine.control import Control
from windrow.engine.outcome import Outcome
from windrow.errors import StoreError
from windrow.records import Rollout
from windrow.tasks.plan import Slot


class Finished(NamedTuple):
    """An attempt that has ended, with an outcome for each of its seats.

    `settled`: its slot is not tried again in this call. `rollouts` are the outcomes' records, or none where a worker
    has written them and nobody here needs them.
    """

    slot: Slot
    outcomes: Sequence[Outcome]
    settled: bool
    rollouts: Sequence[Rollout]


OnDurable = Callable[[Sequence[Finished]], Sequence[Finished]]
Deliver = Callable[[Finished], Awaitable[None]]


class Deliveries:
    """Attempts that are on disk and still to be delivered, no more than `room`. `deliver` is awaited for one at a time.

    What is still to be graded takes its time: it is delivered beside the others.
    """

    def __init__(self, deliver: Deliver, control: Control, *, room: int) -> None:
        self._deliver = deliver
        self._control = control
        self._backlog = Backlog(room)
        self._waiting: deque[Finished] = deque()
        self._closed = False
        self._changed = asyncio.Event()

    async def reserve(self) -> None:
        """Wait until there is room for one more."""
        await self._backlog.enter()

    def release(self, count: int) -> None:
        """Give back room that was reserved for attempts of which there is nothing to deliver."""
        self._backlog.leave(count)

    def put(self, finished: Finished) -> None:
        """Deliver an attempt, for which room was reserved."""
        self._waiting.append(finished)
        self._changed.set()

    def close(self) -> None:
        """No more will come; `run` returns when everything is delivered."""
        self._closed = True
        self._changed.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as grading:
            while self._waiting or not self._closed:
                if not self._waiting:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                finished = self._waiting.popleft()
                if is_pending(finished):
                    grading.create_task(self._deliver_one(finished))
                else:
                    await self._deliver_one(finished)

    async def _deliver_one(self, finished: Finished) -> None:
        try:
            with self._control.cancellable():
                await self._deliver(finished)
        except asyncio.CancelledError:
            if not self._control.absorb():
                raise
        finally:
            self._backlog.leave(1)


class CommitQueue:
    """Writes attempts to `sink`. `on_durable` is called with each batch as soon as it is on disk, and returns those
    attempts of it that are still to be delivered."""

    def __init__(self, sink: Sink, deliveries: Deliveries, on_durable: OnDurable) -> None:
        self._sink = sink
        self._deliveries = deliveries
        self._on_durable = on_durable
        self._finished: list[Finished] = []
        self._closed = False
        self._changed = asyncio.Event()

    async def put(self, finished: Finished) -> None:
        """Have an attempt written; return when there was room for it."""
        await self._deliveries.reserve()
        self._finished.append(finished)
        self._changed.set()

    def close(self) -> None:
        """No more will come; `write` returns when everything is written, and closes the deliveries."""
        self._closed = True
        self._changed.set()

    async def write(self) -> None:
        while self._finished or not self._closed:
            if not self._finished:
                self._changed.clear()
                await self._changed.wait()
                continue
            batch, self._finished = self._finished, []
            await self._sink.commit(_rollouts(batch))
            remaining = self._on_durable(batch)
            for finished in remaining:
                self._deliveries.put(finished)
            self._deliveries.release(len(batch) - len(remaining))
        self._deliveries.close()

    async def rescue(self) -> None:
        """Something else has ended the run: write what had finished by then, if that can still be written."""
        batch, self._finished = self._finished, []
        if batch:
            with contextlib.suppress(StoreError):  # the first problem is the one that is reported
                await self._sink.commit(_rollouts(batch))


def is_pending(finished: Finished) -> bool:
    """Whether a seat of the attempt is still to be graded."""
    return "pending" in [outcome.grade for outcome in finished.outcomes]


def _rollouts(batch: list[Finished]) -> list[Rollout]:
    """What is written at once: the seats of an episode stand together, in their order."""
    return [rollout for finished in batch for rollout in finished.rollouts]
