"""Running an opened collection to its end: its rollouts, then metrics.json, then the trackers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from windrow.collecting.collection import Collection, Summary
from windrow.collecting.events import Event, EventStream, ProgressChanged, RolloutReady
from windrow.collecting.execution import execute
from windrow.engine.control import Control
from windrow.engine.progress import Progress
from windrow.records import Rollout
from windrow.trackers.names import missing, trackers_of
from windrow.trackers.reporting import track
from windrow.util.cancellation import is_cancelled

OnCommit = Callable[[Rollout], Awaitable[None] | None]
OnProgress = Callable[[Progress], None]


class Callbacks:
    """A caller's functions, called with the events that they are for. One that raises is reported, and the run goes on."""

    def __init__(
        self, warn: Callable[[str], None], on_commit: OnCommit | None, on_progress: OnProgress | None
    ) -> None:
        self._warn = warn
        self._on_commit = on_commit
        self._on_progress = on_progress

    @property
    def wanted(self) -> tuple[type[Event], ...]:
        kinds = ((RolloutReady, self._on_commit), (ProgressChanged, self._on_progress))
        return tuple(kind for kind, callback in kinds if callback is not None)

    async def call(self, event: Event) -> None:
        if isinstance(event, RolloutReady) and self._on_commit is not None:
            await self._guarded("on_commit", self._on_commit, event.rollout)
        elif isinstance(event, ProgressChanged) and self._on_progress is not None:
            await self._guarded("on_progress", self._on_progress, event.progress)

    async def _guarded(self, name: str, callback: Callable[[Any], Any], argument: Any) -> None:
        try:
            result = callback(argument)
            if inspect.isawaitable(result):
                await result
        except (Exception, asyncio.CancelledError) as problem:
            if is_cancelled(problem):
                raise
            self._warn(f"{name} raised {type(problem).__name__}: {problem}; the run goes on")


async def run_collection(
    collection: Collection,
    *,
    control: Control | None = None,
    on_commit: OnCommit | None = None,
    on_progress: OnProgress | None = None,
    aggregate: bool = False,
    merged_later: bool = False,
) -> Summary:
    """Run an opened collection to its end, or until `control` stops it, and call the callbacks with its events.

    `aggregate` and `merged_later` are those of `run_into`.
    """
    callbacks = Callbacks(collection.warn, on_commit, on_progress)
    events = EventStream(*callbacks.wanted)
    control = control or Control()
    running = asyncio.create_task(
        run_into(events, collection, control, aggregate=aggregate, merged_later=merged_later)
    )
    try:
        async for event in events:
            await callbacks.call(event)
    except BaseException:
        running.cancel()
        await asyncio.wait({running})
        raise
    return await running


async def run_into(
    events: EventStream,
    collection: Collection,
    control: Control,
    *,
    aggregate: bool = False,
    merged_later: bool = False,
) -> Summary:
    """Run an opened collection to its end, or until `control` stops it; its events go into `events`, which is closed then.

    After a run that was not stopped, `aggregate` writes metrics.json, and the trackers get the run. A rank has only its
    share and sends it to no tracker; with `merged_later`, the caller merges the ranks and sends the whole run then.
    """
    if collection.path is not None:
        for message in filter(None, map(missing, trackers_of(collection.resolved.run.track))):
            collection.warn(message)
    try:
        try:
            summary = await execute(collection, control, events)
            if aggregate and not control.stopping:
                await collection.aggregate()
            collection.end_redo()
        finally:
            collection.close()
        if not merged_later:
            await _track(collection, control)
    finally:
        events.close()
    return summary


async def _track(collection: Collection, control: Control) -> None:
    """Send a run that was not stopped to its trackers. Its lock is free by then: an upload may take its time."""
    run, path, rank = collection.resolved.run, collection.path, collection.resolved.rank
    if path is None or control.stopping or not (trackers := trackers_of(run.track)):
        return
    if rank is not None:
        if rank.number == 0:
            collection.warn(
                f"no tracker was told, since a rank has only its share; when all are done, send the whole run: windrow stats "
                f"{path} --track {trackers[0].name}"
            )
        return
    collection.progress.begin("tracking")
    sending = track(
        path,
        trackers,
        upload_rollouts=run.upload_rollouts,
        metrics=collection.metrics,
        warn=collection.warn,
    )
    try:
        with control.cancellable():
            await sending
    except asyncio.CancelledError:
        if not control.absorb():
            raise
