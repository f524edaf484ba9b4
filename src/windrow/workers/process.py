"""A worker's process, seen from its parent: its socket, its leased slots, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence

import msgspec

from windrow.tasks.plan import Slot
from windrow.workers.messages import (
    Cancel,
    Channel,
    Durable,
    Ended,
    Finish,
    Ready,
    Report,
    RunSlots,
    Start,
    open_channel,
)

AHEAD = 8  # one slot in so many, at least, is leased ahead, so that a worker does not wait
LEAVE_S = 5.0  # for a worker that has finished
# The worker has this process's import path; not through PYTHONPATH, which processes of an environment would inherit.
BEGIN = "import sys; sys.path[:] = sys.argv[3:]; from windrow.workers.worker import main; main()"


class WorkerProcess:
    """One process, seen from its parent: `ready` for slots once its run context is open, `dismissed` when it gets no more."""

    def __init__(self, name: str, share: int) -> None:
        self.name = name
        self.share = share
        self.leased: dict[int, Slot] = {}
        self.running = 0
        self.reported = 0  # attempts in its last report
        self.ready = self.dismissed = self.cancelled = self.ended = False
        self._channel: Channel[Report] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def room(self) -> int:
        """How many more slots it may have. Slots that have ended but are not reported yet are replaced in advance: one
        commit is being written, and the next one gathers."""
        ahead = min(max(self.share // AHEAD, 2 * self.reported), self.share)
        return self.share + ahead - len(self.leased)

    async def start(self, start: Start) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", BEGIN, str(theirs.fileno()), str(os.getpid()), *sys.path),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C on the terminal is for the parent
            )
        self._watch = asyncio.create_task(self._hang_up(self._process, ours))
        self._channel = await open_channel(ours, Report)
        self._channel.post(msgspec.structs.replace(start, writer=self.name, concurrency=self.share))

    @staticmethod
    async def _hang_up(process: asyncio.subprocess.Process, end: socket.socket) -> None:
        """End the stream of reports with the process, even if a child of an environment still holds its socket."""
        await process.wait()
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RD)

    async def reports(self) -> AsyncIterator[Report]:
        """Its reports, until it has ended; `ready`, `reported` and `ended` follow from them."""
        assert self._channel is not None
        async for report in self._channel.receive():
            if isinstance(report, Durable):
                self.reported = len(report.attempts)
            elif isinstance(report, Ready):
                self.ready = True
            elif isinstance(report, Ended):
                self.ended = True
            yield report

    def lease(self, slots: Sequence[Slot]) -> None:
        if slots:
            self.leased.update((slot.number, slot) for slot in slots)
            self.order(RunSlots.of(slots))

    def order(self, order: RunSlots | Finish | Cancel) -> None:
        self.dismissed = self.dismissed or not isinstance(order, RunSlots)
        if self._channel is not None:
            self.cancelled = self.cancelled or isinstance(order, Cancel)
            self._channel.post(order)

    def take_leases_back(self) -> list[Slot]:
        """The slots that a dead process had."""
        self.dismissed = True
        slots = list(self.leased.values())
        self.leased.clear()
        return slots

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def exit_code(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """Wait for the process to end; one that does not leave by itself is killed."""
        if self._channel is not None:
            await self._channel.close()
        if self._watch is not None:
            self._watch.cancel()
        if self._process is None or self._process.returncode is not None:
            return
        try:
            async with asyncio.timeout(LEAVE_S if self.ended else 0):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
