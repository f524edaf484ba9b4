"""The parent's side of `--workers N`: it leases slots, hears what is durable, and counts it.

A worker that dies costs what it was running, nothing else: its committed lines are there, its leased slots are not
given to another (one of them may be on disk already), and the next call of the command runs what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from windrow import errors
from windrow.cluster.messages import (
    Cancel,
    Channel,
    Durable,
    Ended,
    Failed,
    Finish,
    Ready,
    Report,
    Run,
    Start,
    Warned,
    leased,
    open_channel,
)
from windrow.construct import Recipe
from windrow.engine.commits import Commits, Counted, Finished, Taken, Told, nothing
from windrow.engine.control import Control
from windrow.engine.progress import Progress
from windrow.engine.run import COMMITS_WAITING, first_of
from windrow.engine.waiting import Waiting
from windrow.errors import WindrowError
from windrow.records import Rollout
from windrow.tasks.plan import Slot

AHEAD = 8  # one in so many of a worker's episodes is leased ahead, so that it need not wait for the next
LEAVE_S = 5.0  # for a worker that is done
# What is importable here is importable there. Not by PYTHONPATH: what an environment starts would inherit that.
BEGIN = "import sys; sys.path[:] = sys.argv[3:]; from windrow.cluster.worker import main; main()"


class _AlreadyDurable:
    """The sink of what a worker has written."""

    async def commit(self, _: Sequence[Rollout]) -> None:
        return None


class Workers:
    """Runs slots in `len(shares)` processes, each with its share of the episodes at a time.

    `writer` is their parent's, if it is one of several.
    """

    def __init__(
        self,
        recipe: Recipe,
        path: Path,
        *,
        shares: Sequence[int],
        writer: str | None,
        whole: bool,
        progress: Progress,
        control: Control,
        counted: Counted,
        told: Told,
        taken: Taken = nothing,
        spent: Callable[[Rollout], None],
        warn: Callable[[str], None],
    ) -> None:
        self._start = Start(
            recipe=divided(recipe, len(shares)),
            run=str(path.resolve()),
            writer="",
            lock=recipe.run.lock,
            concurrency=1,
            whole=whole,
        )
        self._progress = progress
        self._control = control
        self._spent = spent
        self._warn = warn
        self._warned: dict[str, _Worker] = {}
        prefix = f"{writer}." if writer is not None else ""
        self._workers = [_Worker(f"{prefix}w{number}", share) for number, share in enumerate(shares)]
        self._commits = Commits(
            _AlreadyDurable(),
            control,
            room=COMMITS_WAITING * sum(shares),
            counted=counted,
            told=told,
            taken=taken,
        )

    async def run(self, waiting: Waiting) -> None:
        """Return when every slot is settled, or, after a stop, when the workers have finished what they ran."""
        self._control.listen(self._pass_on)
        try:
            async with asyncio.TaskGroup() as commits:
                commits.create_task(self._commits.write())
                commits.create_task(self._commits.tell())
                async with asyncio.TaskGroup() as serving:
                    for worker in self._workers:
                        serving.create_task(self._serve(worker, waiting))
                self._commits.close()
        except* WindrowError as problems:
            raise first_of(problems) from None

    async def _serve(self, worker: _Worker, waiting: Waiting) -> None:
        """Start a worker, keep it busy, and see it out."""
        try:
            await worker.start(self._start)
            if self._control.stopping:  # before there was anyone to tell
                self._dismiss(worker)
            async for report in worker.reports():
                if isinstance(report, Failed):
                    raise _error(report)
                if isinstance(report, Warned):
                    self._pass_warning_on(worker, report.text)
                elif isinstance(report, Ready):
                    worker.ready = True
                elif isinstance(report, Durable):
                    await self._settle(worker, report, waiting)
                elif isinstance(report, Ended):
                    worker.ended = True
                    break
                self._lease(waiting)
            if not worker.ended:
                self._mourn(worker, await worker.exit_code(), waiting)
                self._lease(waiting)  # the others may have waited for what it had in hand
        finally:
            self._progress.in_flight -= worker.running
            worker.running = 0
            await worker.stop()

    def _pass_warning_on(self, worker: _Worker, text: str) -> None:
        """What several workers find out is told once."""
        if self._warned.setdefault(text, worker) is worker:
            self._warn(text)

    async def _settle(self, worker: _Worker, report: Durable, waiting: Waiting) -> None:
        for rollout in report.rollouts:
            self._spent(rollout)
        slot = worker.leased[report.number]
        if report.settled:
            del worker.leased[report.number]
            waiting.release(slot)
        attempted = msgspec.structs.replace(slot, attempt=report.rollouts[0].attempt)
        await self._commits.put(Finished(attempted, report.rollouts, report.settled))

    def _lease(self, waiting: Waiting) -> None:
        """Give each worker what it has room for; when nothing is left anywhere, let them go."""
        living = [worker for worker in self._workers if worker.ready and not worker.left]
        for worker in living:
            slots: list[Slot] = []
            while worker.room > len(slots) and not self._control.stopping:
                slot = waiting.take()
                if slot is None:
                    break
                slots.append(slot)
            if slots:
                worker.lease(slots)
            running = min(len(worker.leased), worker.share)
            self._progress.in_flight += running - worker.running
            worker.running = running
        if waiting.exhausted and not any(worker.leased for worker in self._workers):
            for worker in living:
                worker.order(Finish())

    def _pass_on(self) -> None:
        """The run is stopped or cancelled: so are the workers. One that is told twice to cancel is not asked again."""
        for worker in self._workers:
            if worker.cancelled:
                worker.kill()
            else:
                self._dismiss(worker)

    def _dismiss(self, worker: _Worker) -> None:
        worker.order(Cancel(self._control.reason) if self._control.cancelled else Finish())

    def _mourn(self, worker: _Worker, code: int, waiting: Waiting) -> None:
        how = signal.Signals(-code).name if code < 0 else f"exit {code}"
        self._warn(
            f"worker {worker.name} died ({how}); what it had committed is safe, and the same command again runs the "
            f"{len(worker.leased):,} rollouts that it had in hand"
        )
        for slot in worker.leased.values():
            waiting.release(slot)
        worker.leased.clear()
        worker.left = True
        if all(worker.left for worker in self._workers):
            self._control.stop("every worker died")


class _Worker:
    """One process, seen from its parent."""

    def __init__(self, name: str, share: int) -> None:
        self.name = name
        self.share = share
        self.leased: dict[int, Slot] = {}
        self.running = 0
        self.ready = self.ended = self.left = self.cancelled = False
        self._channel: Channel[Report] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def room(self) -> int:
        return self.share + self.share // AHEAD - len(self.leased)

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
        """When the process is gone, nothing more comes, though a child of an environment may hold its socket."""
        await process.wait()
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RD)

    def reports(self) -> AsyncIterator[Report]:
        """What it says, until it is gone."""
        assert self._channel is not None
        return self._channel.receive()

    def lease(self, slots: Sequence[Slot]) -> None:
        self.leased.update((slot.number, slot) for slot in slots)
        self.order(Run([leased(slot) for slot in slots]))

    def order(self, order: Run | Finish | Cancel) -> None:
        self.left = self.left or not isinstance(order, Run)
        if self._channel is not None:
            self.cancelled = self.cancelled or isinstance(order, Cancel)
            self._channel.post(order)

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def exit_code(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """See the process out; one that does not leave by itself is killed."""
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


def _error(report: Failed) -> WindrowError:
    kind = getattr(errors, report.error, WindrowError)
    error: WindrowError = kind(report.text)
    return error


def divided(recipe: Recipe, count: int) -> Recipe:
    """The recipe of one of `count` workers: each keeps to its part of what the endpoint takes in a minute."""
    policy = recipe.run.policy
    parts = {
        name: rate / count
        for name in ("requests_per_minute", "tokens_per_minute")
        if (rate := getattr(policy, name)) is not None
    }
    run = msgspec.structs.replace(recipe.run, policy=msgspec.structs.replace(policy, **parts))
    return msgspec.structs.replace(recipe, run=run)


def shares_of(total: int, count: int) -> list[int]:
    """`total` in `count` parts, as even as can be, the larger ones first."""
    return [total // count + (number < total % count) for number in range(count)]
