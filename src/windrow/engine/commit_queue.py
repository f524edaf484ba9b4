"""The commit queue: finished attempts go to disk in batches. They are counted and delivered only once they are durable.

Two tasks run beside the episodes: one writes all attempts that have finished since its last write, one delivers. A slow
observer holds up deliveries, not writing; where too many attempts wait, `CommitQueue.put` waits too, and with it the episodes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from windrow.engine.backlog import Backlog
from windrow.engine.control import Control
from windrow.engine.outcome import Outcome
from windrow.errors import StoreError
from windrow.records import Rollout
from windrow.tasks.plan import Slot


class FinishedAttempt(NamedTuple):
    """An attempt that has ended, with an outcome for each of its seats.

    `settled`: its slot is not tried again in this call. `rollouts` are the outcomes' records, or none where a worker
    has written them and nobody here needs them.
    """

    slot: Slot
    outcomes: Sequence[Outcome]
    settled: bool
    rollouts: Sequence[Rollout]


class Sink(Protocol):
    """Where finished attempts are written. `commit` returns when they are durable."""

    async def commit(self, rollouts: Sequence[Rollout]) -> None: ...


class AttemptObserver(Protocol):
    """Follows each attempt of a run, from its end to its delivery. It is called in this order."""

    def on_attempt_end(self, outcome: Outcome) -> None:
        """One seat of an attempt has ended. Nothing of it is on disk yet."""

    def on_durable(self, batch: Sequence[FinishedAttempt]) -> Sequence[FinishedAttempt]:
        """These attempts are on disk. Return those that `on_committed` is to be awaited for."""

    async def on_committed(self, finished: FinishedAttempt) -> None:
        """Grade and deliver an attempt. One is delivered at a time; those to be graded are delivered side by side."""


class Deliveries:
    """Attempts that are on disk and not delivered yet, at most `room` of them."""

    def __init__(self, observer: AttemptObserver, control: Control, *, room: int) -> None:
        self._observer = observer
        self._control = control
        self._backlog = Backlog(room)
        self._waiting: deque[FinishedAttempt] = deque()
        self._closed = False
        self._changed = asyncio.Event()

    async def reserve(self) -> None:
        """Wait until there is room for one more."""
        await self._backlog.enter()

    def release(self, count: int) -> None:
        """Give back room that was reserved for attempts of which there is nothing to deliver."""
        self._backlog.leave(count)

    def put(self, finished: FinishedAttempt) -> None:
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
                if awaits_grading(finished):
                    grading.create_task(self._deliver_one(finished))
                else:
                    await self._deliver_one(finished)

    async def _deliver_one(self, finished: FinishedAttempt) -> None:
        try:
            with self._control.cancellable():
                await self._observer.on_committed(finished)
        except asyncio.CancelledError:
            if not self._control.absorb():
                raise
        finally:
            self._backlog.leave(1)


class CommitQueue:
    """Writes attempts to `sink`, tells the observer of each batch that is on disk, and passes on what is to be delivered."""

    def __init__(self, sink: Sink, deliveries: Deliveries, observer: AttemptObserver) -> None:
        self._sink = sink
        self._deliveries = deliveries
        self._observer = observer
        self._finished: list[FinishedAttempt] = []
        self._closed = False
        self._changed = asyncio.Event()

    async def put(self, finished: FinishedAttempt) -> None:
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
            remaining = self._observer.on_durable(batch)
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


def awaits_grading(finished: FinishedAttempt) -> bool:
    """Whether a seat of the attempt is still to be graded."""
    return "pending" in [outcome.grade for outcome in finished.outcomes]


def _rollouts(batch: list[FinishedAttempt]) -> list[Rollout]:
    """What is written at once: the seats of an episode stand together, in their order."""
    return [rollout for finished in batch for rollout in finished.rollouts]
