"""The events of a call: everything that its caller can watch, as one stream.

A rollout is an event once it is on disk and graded, a group once it is whole. The library's iterator, the callbacks, the
command's display and its `--json` output all read this stream; so can a viewer or a trainer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from windrow.engine.progress import Progress
from windrow.records import Rollout, RolloutGroup


class RolloutReady(NamedTuple):
    """A rollout of this call is on disk, and graded as far as it can be. `settled`: this call does not try its slot again."""

    rollout: Rollout
    settled: bool


class GroupReady(NamedTuple):
    """A group is whole: every member is on disk and graded."""

    group: RolloutGroup


class ProgressChanged(NamedTuple):
    """The counts have changed to these."""

    progress: Progress


Event = RolloutReady | GroupReady | ProgressChanged

_END = object()


class EventStream(AsyncIterator[Event]):
    """Events of the kinds that the reader wants, in order. A slow reader holds the run back once `room` events wait.

    The run puts events in and closes the stream at its end; one reader iterates over it.
    """

    def __init__(self, *wanted: type[Event], room: int = 16) -> None:
        self._wanted = frozenset(wanted)
        self._queue: asyncio.Queue[object] = asyncio.Queue()
        self._free = asyncio.Semaphore(room)

    def wants(self, kind: type[Event]) -> bool:
        return kind in self._wanted

    async def put(self, event: Event) -> None:
        """Add an event that the reader wants; wait while there is no room for it."""
        await self._free.acquire()
        self._queue.put_nowait(event)

    def close(self) -> None:
        """No event follows; the iteration ends after those that wait."""
        self._queue.put_nowait(_END)

    async def __anext__(self) -> Event:
        event = await self._queue.get()
        if event is _END:
            self.close()  # for whoever asks again
            raise StopAsyncIteration
        self._free.release()
        assert isinstance(event, RolloutReady | GroupReady | ProgressChanged)
        return event
