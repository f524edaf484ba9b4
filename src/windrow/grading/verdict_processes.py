"""Verdicts from processes of their own, for code that may do anything with a model's reply: run for ever, use all
memory, or evaluate it.

Each verdict is given by a fresh, confined process (`util/fork_server.py`), so no reply can reach another's verdict. A few run at a time. The
rest wait in turn, and their time limits begin with their work. A verdict that takes long makes room for the next one, so
that slow ones do not hold up the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from windrow.errors import ScorerError
from windrow.util.deadlines import clock_stopped
from windrow.util.forked_calls import CallFailed, ForkServer

T = TypeVar("T")

SLOW_S = 1.0  # after which a verdict makes room for another
MOST_SLOW = 8  # at a time, beside the others: each may use the memory that a process is allowed


class Processes:
    """Up to `at_once` processes of one server at a time, and some more of those that are slow."""

    def __init__(self, server: ForkServer, *, who: str, at_once: int) -> None:
        self._server = server
        self._who = who
        self._places = Places(at_once)

    async def ask(self, question: Mapping[str, Any], *, cpu_s: int, warm: str = "") -> bytes | None:
        """Return the answer; None if it would take more than `cpu_s` of processor time."""
        return await self.ask_bytes(msgspec.json.encode(question), cpu_s=cpu_s, warm=warm)

    async def ask_bytes(self, question: bytes, *, cpu_s: int, warm: str = "") -> bytes | None:
        """Return the answer to a question in an encoding of its own."""
        async with self._places.taken():
            try:
                return await self._server.ask(question, cpu_s=cpu_s, warm=warm)
            except CallFailed as problem:
                if problem.out_of_time:
                    return None
                raise ScorerError(f"{self._who}: {problem}") from None


def decoded(answer: bytes, kind: type[T], who: str) -> T:
    """Return an answer in the form that was agreed. What evaluates a reply may write anything."""
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise ScorerError(
            f"{who}: its process gave no verdict that can be read: {problem}", retryable=False
        ) from None


class Places:
    """Places for work on each event loop, given out in the order in which they were asked for."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopPlaces] = WeakKeyDictionary()

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Inside, the caller has a place. While it waits for one, its time limit stands still."""
        loop = asyncio.get_running_loop()
        places = self._loops.get(loop) or self._loops.setdefault(loop, _LoopPlaces(self._at_once))
        with clock_stopped():
            await places.free.acquire()
        place = _Place(places)
        try:
            yield
        finally:
            place.leave()


class _LoopPlaces:
    def __init__(self, at_once: int) -> None:
        self.free = asyncio.Semaphore(at_once)
        self.slow = 0


class _Place:
    """A place that is held. One that is held for long is given to the next, and its holder goes on without."""

    def __init__(self, places: _LoopPlaces) -> None:
        self._places = places
        self._slow = False
        self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SLOW_S, self._make_room)

    def _make_room(self) -> None:
        if self._places.slow >= MOST_SLOW:
            self._wait()
            return
        self._slow = True
        self._places.slow += 1
        self._places.free.release()

    def leave(self) -> None:
        self._timer.cancel()
        if self._slow:
            self._places.slow -= 1
        else:
            self._places.free.release()
