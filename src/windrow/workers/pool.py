"""The parent's side of `--workers N`: it leases slots, hears what is durable, and counts it.

A worker that dies costs what it was running, nothing else: its committed lines are there, its leased slots are not
given to another (one of them may be on disk already), and the next call of the command runs what is missing.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from windrow import errors
from windrow.engine.commit_queue import AttemptObserver, Deliveries, FinishedAttempt
from windrow.engine.control import Control
from windrow.engine.progress import Progress
from windrow.engine.scheduler import UNDELIVERED_PER_EPISODE
from windrow.engine.slot_queue import SlotQueue
from windrow.errors import WindrowError, first_of
from windrow.tasks.plan import Slot
from windrow.workers.messages import Cancel, Durable, Ended, Failed, Finish, Ready, Start, Warned
from windrow.workers.process import WorkerProcess
from windrow.workers.spec import WorkerSpec


class Workers:
    """Runs slots in `len(shares)` processes, each with its share of the episodes at a time.

    `writer` is their parent's, if it is one of several.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        path: Path,
        slots: SlotQueue,
        observer: AttemptObserver,
        *,
        shares: Sequence[int],
        writer: str | None,
        wants_rollouts: bool,
        progress: Progress,
        control: Control,
        warn: Callable[[str], None],
    ) -> None:
        self._start = Start(
            spec=divided(spec, len(shares)),
            run=str(path.resolve()),
            writer="",
            lock=spec.run.lock,
            concurrency=1,
            wants_rollouts=wants_rollouts,
        )
        self._slots = slots
        self._observer = observer
        self._progress = progress
        self._control = control
        self._warn = warn
        self._warned: dict[str, WorkerProcess] = {}
        prefix = f"{writer}." if writer is not None else ""
        self._workers = [WorkerProcess(f"{prefix}w{number}", share) for number, share in enumerate(shares)]
        self._deliveries = Deliveries(observer, control, room=UNDELIVERED_PER_EPISODE * sum(shares))

    async def run(self) -> None:
        """Return when every slot is settled, or, after a stop, when the workers have finished what they ran."""
        self._control.listen(self._stop_workers)
        try:
            async with asyncio.TaskGroup() as deliveries:
                deliveries.create_task(self._deliveries.run())
                async with asyncio.TaskGroup() as serving:
                    for worker in self._workers:
                        serving.create_task(self._serve(worker))
                self._deliveries.close()
        except* WindrowError as problems:
            raise first_of(problems) from None

    async def _serve(self, worker: WorkerProcess) -> None:
        """Start a worker, keep it busy, and see it out."""
        try:
            await worker.start(self._start)
            if self._control.stopping:  # before there was a process that could be asked to stop
                self._dismiss(worker)
            async for report in worker.reports():
                if isinstance(report, Failed):
                    raise _error(report)
                if isinstance(report, Warned):
                    self._warn_once(worker, report.text)
                elif isinstance(report, Ready):
                    if self._progress.phase == "opening":  # it is the first
                        self._progress.begin("running")
                    self._lease([worker])
                elif isinstance(report, Durable):
                    await self._count_commit(worker, report)
                    self._lease(self._workers if self._slots.limited else [worker])
                elif isinstance(report, Ended):
                    break
            if not worker.ended:
                self._report_death(worker, await worker.exit_code())
                self._lease(self._workers)  # the others may have waited for what it had in hand
        finally:
            self._progress.in_flight -= worker.running
            worker.running = 0
            await worker.stop()

    def _warn_once(self, worker: WorkerProcess, text: str) -> None:
        """Pass a warning on, unless another worker has given the same one."""
        if self._warned.setdefault(text, worker) is worker:
            self._warn(text)

    async def _count_commit(self, worker: WorkerProcess, report: Durable) -> None:
        """Count what a worker has committed; return when there was room for what is to be delivered of it."""
        batch = []
        for attempt in report.attempts:
            for seat in attempt.seats:
                self._observer.on_attempt_end(seat)
            slot = worker.leased[attempt.number]
            if attempt.settled:
                del worker.leased[attempt.number]
                self._slots.release(slot)
            if attempt.attempt != slot.attempt:
                slot = msgspec.structs.replace(slot, attempt=attempt.attempt)
            batch.append(FinishedAttempt(slot, attempt.seats, attempt.settled, attempt.rollouts))
        for finished in self._observer.on_durable(batch):
            await self._deliveries.reserve()
            self._deliveries.put(finished)

    def _lease(self, workers: Sequence[WorkerProcess]) -> None:
        """Give `workers` what they have room for; when nothing is left anywhere, let all of them go."""
        for worker in workers:
            if worker.ready and not worker.dismissed:
                worker.lease(self._next(worker.room))
                running = min(len(worker.leased), worker.share)
                self._progress.in_flight += running - worker.running
                worker.running = running
        if self._slots.exhausted and not any(worker.leased for worker in self._workers):
            for worker in self._workers:
                if worker.ready and not worker.dismissed:
                    worker.order(Finish())

    def _next(self, most: int) -> list[Slot]:
        """The next slots that may start, `most` at most."""
        slots: list[Slot] = []
        while len(slots) < most and not self._control.stopping:
            slot = self._slots.take()
            if slot is None:
                break
            slots.append(slot)
        return slots

    def _stop_workers(self) -> None:
        """The run is stopped or cancelled: so are the workers. A second cancel kills them."""
        for worker in self._workers:
            if worker.cancelled:
                worker.kill()
            else:
                self._dismiss(worker)

    def _dismiss(self, worker: WorkerProcess) -> None:
        worker.order(Cancel(self._control.reason) if self._control.cancelled else Finish())

    def _report_death(self, worker: WorkerProcess, code: int) -> None:
        how = signal.Signals(-code).name if code < 0 else f"exit {code}"
        self._warn(
            f"worker {worker.name} died ({how}); what it had committed is safe, and the same command again runs the "
            f"{len(worker.leased):,} rollouts that it had in hand"
        )
        for slot in worker.take_leases_back():
            self._slots.release(slot)
        if all(worker.dismissed for worker in self._workers):
            self._control.stop("every worker died")


def _error(report: Failed) -> WindrowError:
    kind = getattr(errors, report.error, WindrowError)
    error: WindrowError = kind(report.text)
    return error


def divided(spec: WorkerSpec, count: int) -> WorkerSpec:
    """The spec for each of `count` workers, which share the rate limits of the endpoint equally."""
    policy = spec.run.policy
    parts = {
        name: rate / count
        for name in ("requests_per_minute", "tokens_per_minute")
        if (rate := getattr(policy, name)) is not None
    }
    run = msgspec.structs.replace(spec.run, policy=msgspec.structs.replace(policy, **parts))
    return msgspec.structs.replace(spec, run=run)


def shares_of(total: int, count: int) -> list[int]:
    """`total` in `count` parts, as even as can be, the larger ones first."""
    return [total // count + (number < total % count) for number in range(count)]
