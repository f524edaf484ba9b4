"""The iterator that `windrow.collect` returns: a run in a task of its own, read event by event, and seen out when it is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Generic, TypeVar

from windrow.collecting.collection import Collection, Summary
from windrow.collecting.events import Event, EventStream, RolloutReady
from windrow.collecting.resolve import ResolvedRun
from windrow.collecting.running import Callbacks, OnCommit, OnProgress, run_into
from windrow.engine.control import Control

TURNS_TO_LEAVE = 32

Item = TypeVar("Item")


class Collected(AsyncIterator[Item], Generic[Item]):
    """The rollouts, or groups, of one call, as they are ready. The run starts when the first one is asked for.

    Leaving the loop early cancels the run; so does `aclose`, which returns when its lock is free.
    """

    def __init__(
        self,
        resolve_run: Callable[[], ResolvedRun],
        open_run: Callable[[ResolvedRun], Collection],
        item_of: Callable[[Event], Item | None],
        *,
        wanted: type[Event],
        on_commit: OnCommit | None = None,
        on_progress: OnProgress | None = None,
        aggregate: bool = False,
    ) -> None:
        """`item_of` is what the caller gets of an event, None if nothing. `wanted` is the kind of event that has it."""
        self._resolve_run = resolve_run
        self._open_run = open_run
        self._item_of = item_of
        self._wanted = wanted
        self._callbacks = on_commit, on_progress
        self._aggregate = aggregate
        self._run: _Run | None = None
        self._closed = False

    async def __anext__(self) -> Item:
        if self._run is None:
            self._run = await self._start()
        try:
            while True:
                event = await self._run.next_event()
                item = self._item_of(event)
                if item is not None and not self._run.was_cut(event):
                    return item
        except asyncio.CancelledError:
            await self.aclose()
            raise

    async def _start(self) -> _Run:
        if self._closed:
            raise StopAsyncIteration
        resolved = self._resolve_run()
        await _abandoned_runs_ended(resolved.out)
        if self._closed:  # meanwhile
            raise StopAsyncIteration
        if self._run is not None:  # another reader has started it meanwhile
            return self._run
        collection = self._open_run(resolved)
        callbacks = Callbacks(collection.warn, *self._callbacks)
        return _Run(collection, callbacks, self._wanted, aggregate=self._aggregate)

    async def aclose(self) -> None:
        """Cancel the run, if it goes on, and return when it has ended."""
        self._closed = True
        if self._run is not None:
            await self._run.leave()

    def __del__(self) -> None:
        if self._run is not None:
            self._run.abandon()


class _Run:
    """A collection that runs in a task of its own, read event by event."""

    def __init__(
        self, collection: Collection, callbacks: Callbacks, wanted: type[Event], *, aggregate: bool
    ) -> None:
        self.path = collection.path
        self._callbacks = callbacks
        self._control = Control()
        room = max(16, collection.resolved.concurrency)
        self._events = EventStream(*callbacks.wanted, wanted, room=room)
        self._read_out = False
        self.leaving: asyncio.Task[None] | None = None  # once its iterator was closed or dropped
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Summary] = self._loop.create_task(
            run_into(self._events, collection, self._control, aggregate=aggregate)
        )
        _running.add(self)
        self._task.add_done_callback(self._ended)

    @property
    def ended(self) -> bool:
        return self._task.done()

    def is_here(self) -> bool:
        """Whether this run is of the current loop."""
        return self._loop is asyncio.get_running_loop()

    async def next_event(self) -> Event:
        """The next event, after its callbacks; at the end, what ended the run is raised."""
        try:
            event = await anext(self._events)
        except StopAsyncIteration:
            self._read_out = True
            await self._task
            raise
        await self._callbacks.call(event)
        return event

    def was_cut(self, event: Event) -> bool:
        """Whether the run was cancelled, say by a budget in seconds, before this rollout had ended or was graded."""
        if not self._control.cancelled or not isinstance(event, RolloutReady):
            return False
        return event.rollout.status == "cancelled" or event.rollout.grade == "pending"

    async def leave(self) -> None:
        """Cancel the run and see it out. Who is cancelled meanwhile waits no longer, and the run is seen out all the same."""
        leaving = self._start_leaving()
        if leaving is not asyncio.current_task():  # a callback may leave its own run
            await asyncio.wait({leaving})

    def abandon(self) -> None:
        """The caller has dropped its iterator, perhaps in another thread: leave in a task that the next call waits for."""
        if not self._read_out and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._start_leaving)

    def _start_leaving(self) -> asyncio.Task[None]:
        if self.leaving is None:
            self._control.cancel()
            self.leaving = self._loop.create_task(self._see_out())
            _running.add(self)
            self.leaving.add_done_callback(lambda _: _running.discard(self))
        return self.leaving

    async def _see_out(self) -> None:
        """Read to the end: callbacks are still called for what the run has committed, and nothing waits for room."""
        try:
            async for event in self._events:
                await self._callbacks.call(event)
            await asyncio.wait({self._task})
        except asyncio.CancelledError:  # by a callback, or with its loop
            self._task.cancel()
            await asyncio.wait({self._task})
            raise

    def _ended(self, _: asyncio.Task[Summary]) -> None:
        if self.leaving is None:
            _running.discard(self)


_running: set[_Run] = set()


async def _abandoned_runs_ended(path: Path) -> None:
    """Wait for runs whose loop was left: they hold their locks until they have ended.

    The interpreter closes a generator that was left, such as one around `collect`, a few turns of the loop later; so a run
    in `path` that nobody seems to have dropped is given some turns. One that is still read then is refused by its lock.
    """
    for _ in range(TURNS_TO_LEAVE):
        await asyncio.sleep(0)  # a run that was dropped just now is leaving afterwards
        # Of this loop, in a copy: other threads start and end runs too. A callback of a run that is left may call for another.
        runs = [run for run in tuple(_running) if run.is_here()]
        others = [run for run in runs if run.leaving is None or run.leaving is not asyncio.current_task()]
        if leaving := [run.leaving for run in others if run.leaving is not None]:
            await asyncio.wait(leaving)
        if not any(run.path == path and not run.ended for run in others):
            return
