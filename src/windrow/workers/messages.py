"""The messages between a parent and its workers: JSON, each after its length, over a socket pair."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import groupby
from typing import Any, Generic, TypeVar

import msgspec

from windrow.records import OPPONENT, ErrorRecord, Grade, Reason, Rollout, Status, Task, Usage, is_done
from windrow.tasks.plan import Slot, recorded_task
from windrow.workers.spec import WorkerSpec

LENGTH_BYTES = 8
READ_BYTES = 1 << 20


# -- to a worker


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """The first message. `wants_rollouts`: the parent needs the rollouts themselves, not only their outcomes."""

    spec: WorkerSpec
    run: str
    writer: str
    lock: bool
    concurrency: int
    wants_rollouts: bool


class TaskLease(msgspec.Struct, frozen=True, array_like=True):
    """Slots of one task, whose row is sent once. `attempts` are (number, sample, attempt, id, seed)."""

    task: Task
    group: str
    attempts: list[tuple[int, int, int, str, int]]

    def slots(self) -> Iterator[Slot]:
        recorded = recorded_task(self.task)
        for number, sample, attempt, id, seed in self.attempts:
            yield Slot(
                number=number,
                id=id,
                attempt=attempt,
                group=self.group,
                sample=sample,
                seed=seed,
                task=self.task,
                recorded_task=recorded,
            )


class RunSlots(msgspec.Struct, frozen=True, tag="run"):
    leases: list[TaskLease]

    @staticmethod
    def of(slots: Iterable[Slot]) -> RunSlots:
        """The order to run slots, those of a task one after the other."""
        leases = []
        for group, found in groupby(slots, key=lambda slot: slot.group):
            members = list(found)
            attempts = [(slot.number, slot.sample, slot.attempt, slot.id, slot.seed) for slot in members]
            leases.append(TaskLease(members[0].task, group, attempts))
        return RunSlots(leases)


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """No more will come; what has not been started is not started any more."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    reason: Reason


# -- from a worker


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Its run context is open, and it holds the lock of its segment."""


class SeatOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What of a rollout is counted: an `Outcome`."""

    agent: str
    status: Status
    reason: Reason | None
    error: ErrorRecord | None
    grade: Grade
    reward: float | None
    usage: Usage

    @property
    def done(self) -> bool:
        return is_done(self.status, self.reason)

    @property
    def opponent(self) -> bool:
        return self.agent == OPPONENT


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """An attempt that is on disk, all its seats. `rollouts` are its records where the parent needs them, else none."""

    number: int
    attempt: int
    settled: bool
    seats: tuple[SeatOutcome, ...]
    rollouts: tuple[Rollout, ...] = ()


class Durable(msgspec.Struct, frozen=True, tag="durable"):
    """The attempts of one commit, or one of them with its rollouts."""

    attempts: list[Attempt]


class Warned(msgspec.Struct, frozen=True, tag="warned"):
    text: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The worker cannot go on; `error` names the class of our error, and every worker would fare alike."""

    error: str
    text: str


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """All it was given is done, or will not be; it leaves in good order."""


Order = Start | RunSlots | Finish | Cancel
Report = Ready | Durable | Warned | Failed | Ended

M = TypeVar("M")


class Channel(Generic[M]):
    """One end. Messages of one turn of the loop leave together."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: msgspec.json.Decoder[M]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        self._encode = msgspec.json.Encoder().encode
        self._outbox: list[bytes] = []

    def post(self, message: object) -> None:
        """Send without waiting. A peer that is gone is noticed by `receive`."""
        data = self._encode(message)
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox += (len(data).to_bytes(LENGTH_BYTES, "big"), data)

    async def send(self, message: object) -> None:
        """Send, and return when there is room for more."""
        self.post(message)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if outbox and not self._writer.is_closing():
            self._writer.write(b"".join(outbox))

    async def receive(self) -> AsyncIterator[M]:
        """Messages until the other end is gone."""
        try:
            while True:
                length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
                yield self._decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    async def close(self) -> None:
        self._flush()
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


async def open_channel(end: socket.socket, kind: Any) -> Channel[Any]:
    """A channel over one end of a socket pair, which it closes in the end; `kind` is what comes from the other."""
    reader, writer = await asyncio.open_connection(sock=end, limit=READ_BYTES)
    return Channel(reader, writer, msgspec.json.Decoder(kind))
