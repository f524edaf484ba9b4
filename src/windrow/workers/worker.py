"""The program of a worker process: it runs the slots that its parent leases to it, and commits to a log segment of its own.

It never outlives its parent: the kernel kills it then (`util/reaper.py`), or the closed socket ends it where kernels cannot.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from windrow.engine.commit_queue import FinishedAttempt, awaits_grading
from windrow.engine.context import RunContext
from windrow.engine.control import Control
from windrow.engine.outcome import Outcome
from windrow.engine.progress import Progress
from windrow.engine.scheduler import Scheduler
from windrow.engine.slot_queue import SlotQueue
from windrow.errors import WindrowError, first_of
from windrow.records import Rollout, decode_rollout, encode
from windrow.store.run_directory import RunDirectory
from windrow.store.sinks import RolloutSink
from windrow.tasks.plan import Slot
from windrow.util.blobs import Blobs
from windrow.util.descriptors import make_room
from windrow.util.event_loop import run_loop
from windrow.util.guard import watch_with
from windrow.util.reaper import die_with_parent
from windrow.util.redaction import Redactor
from windrow.workers.messages import (
    Attempt,
    Cancel,
    Channel,
    Durable,
    Ended,
    Failed,
    Order,
    Ready,
    RunSlots,
    SeatOutcome,
    Start,
    Warned,
    open_channel,
)
from windrow.workers.spec import context_of


def main() -> None:
    end, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides, even if all processes get it
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which processes of an environment would inherit
    run_loop(_serve(end))


async def _serve(end: socket.socket) -> None:
    channel: Channel[Order] = await open_channel(end, Order)
    orders = channel.receive()
    start = await anext(orders, None)
    if isinstance(start, Start):
        try:
            await _Worker(channel, start).run(orders)
            channel.post(Ended())
        except WindrowError as problem:
            channel.post(Failed(type(problem).__name__, Redactor().text(str(problem))))
        await channel.close()


class _Worker:
    """Runs leased slots with a scheduler, and reports each commit: it is the observer of its attempts."""

    def __init__(self, channel: Channel[Order], start: Start) -> None:
        self._channel = channel
        self._start = start
        self._redactor = Redactor()
        self._control = Control()
        self._scheduler: Scheduler | None = None
        self._inbox: deque[Slot] = deque()
        self._finish = asyncio.Event()

    async def run(self, orders: AsyncIterator[Order]) -> None:
        """Open the run context and the segment, then run what is leased, until the parent says that it is enough."""
        start = self._start
        context = context_of(start.spec, self._redactor)
        directory = RunDirectory(Path(start.run), writer=start.writer, lock=start.lock)
        try:
            sink = directory.rollout_sink(self._redactor)
            for torn in directory.torn:
                self._warn(f"a torn last line was set aside in {torn}")
            if too_few := make_room(start.concurrency):
                self._warn(too_few)
            watch_with(self._warn)
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(self._listen(orders))
                await self._play(context, sink, directory.blobs)
                listening.cancel()
        except* WindrowError as problems:
            raise first_of(problems) from None
        finally:
            directory.close()

    async def _play(self, context: RunContext, sink: RolloutSink, blobs: Blobs) -> None:
        try:
            with self._control.cancellable():
                await context.open(self._warn, blobs)
            self._channel.post(Ready())
            self._scheduler = Scheduler(
                context,
                SlotQueue(self._next),
                sink,
                self,
                concurrency=self._start.concurrency,
                adaptive=self._start.spec.run.concurrency == "auto",
                retries=self._start.spec.run.retries,
                progress=Progress(planned=0),
                control=self._control,
            )
            await self._scheduler.run(until=self._finish)
        except asyncio.CancelledError:
            if not self._control.absorb():
                raise
        finally:
            await context.close()

    def _next(self) -> Slot | None:
        return self._inbox.popleft() if self._inbox else None

    async def _listen(self, orders: AsyncIterator[Order]) -> None:
        async for order in orders:
            if isinstance(order, RunSlots):
                for lease in order.leases:
                    self._inbox += lease.slots()
                if self._scheduler is not None:
                    self._scheduler.start_more()
                continue
            self._inbox.clear()
            self._finish.set()
            if isinstance(order, Cancel):
                self._control.cancel(reason=order.reason)
            else:
                self._control.stop()
        os._exit(1)  # the parent is gone

    def on_attempt_end(self, outcome: Outcome) -> None:
        """The parent counts usage when it hears of the commit."""

    def on_durable(self, batch: Sequence[FinishedAttempt]) -> Sequence[FinishedAttempt]:
        """Report a commit in one message, except for attempts whose rollouts the parent needs: `on_committed` sends those."""
        if self._start.wants_rollouts:
            return batch
        counted = [self._attempt(finished) for finished in batch if not awaits_grading(finished)]
        if counted:
            self._channel.post(Durable(counted))
        return [finished for finished in batch if awaits_grading(finished)]

    async def on_committed(self, finished: FinishedAttempt) -> None:
        rollouts = tuple(map(self._without_secrets, finished.rollouts))
        await self._channel.send(Durable([self._attempt(finished, rollouts)]))

    def _attempt(self, finished: FinishedAttempt, rollouts: tuple[Rollout, ...] = ()) -> Attempt:
        slot, _, settled, seats = finished
        return Attempt(slot.number, slot.attempt, settled, tuple(map(self._seat, seats)), rollouts)

    def _seat(self, rollout: Rollout) -> SeatOutcome:
        error = rollout.error
        if error is not None:
            kind, message = self._redactor.text(error.kind), self._redactor.text(error.message)
            error = msgspec.structs.replace(error, kind=kind, message=message, traceback=None)
        return SeatOutcome(
            rollout.agent,
            rollout.status,
            rollout.reason,
            error,
            rollout.grade,
            rollout.reward,
            rollout.usage,
        )

    def _without_secrets(self, rollout: Rollout) -> Rollout:
        """As it stands in the log: the parent does not know the secrets that environments have named here."""
        line = encode(rollout)
        clean = self._redactor.line(line)
        return rollout if clean is line else decode_rollout(clean)

    def _warn(self, message: str) -> None:
        self._channel.post(Warned(self._redactor.text(message)))
