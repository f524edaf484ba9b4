"""Executing a call: services are started, rollouts that earlier calls left ungraded are graded, then the pending slots run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from windrow.collecting.collection import Collection, Summary
from windrow.collecting.delivery import Delivery
from windrow.collecting.events import EventStream, GroupReady, ProgressChanged
from windrow.collecting.grading import CollectGrading
from windrow.engine.control import Control
from windrow.engine.scheduler import Scheduler
from windrow.engine.slot_queue import Name, SlotQueue
from windrow.engine.stop_conditions import StopConditions
from windrow.errors import StoreError
from windrow.records import RolloutGroup
from windrow.services import serving
from windrow.tasks.plan import Slot, retried
from windrow.util.descriptors import make_room
from windrow.util.guard import watch_with
from windrow.workers.pool import Workers, shares_of


class Placement(Protocol):
    """Where episodes run: in this process, or in processes of their own."""

    async def run(self) -> None:
        """Return when every slot is settled, or, after a stop, when the running ones are."""


async def execute(collection: Collection, control: Control, events: EventStream) -> Summary:
    """Grade rollouts that an earlier call left ungraded, then run what is pending; return when both are durable."""
    watch_with(collection.warn)
    collection.start_counting()
    run = collection.resolved.run
    stop_conditions = StopConditions(control, budget=run.budget, max_failure_rate=run.max_failure_rate)
    stop_conditions.start()
    try:
        if collection.to_grade or collection.ledger.pending_count:
            await _Execution(collection, control, stop_conditions, events).run()
    except BaseException:
        with contextlib.suppress(StoreError):  # the first problem is the one that is reported
            collection.save_counts()
        raise
    finally:
        stop_conditions.release()
    collection.save_counts()
    return collection.summary()


class _Execution:
    """One call: what it grades and runs, with the objects that its steps share."""

    def __init__(
        self, collection: Collection, control: Control, stop_conditions: StopConditions, events: EventStream
    ) -> None:
        self._collection = collection
        self._resolved = collection.resolved
        self._progress = collection.progress
        self._control = control
        self._stop_conditions = stop_conditions
        self._events = events
        self._grading = self._make_grading()

    async def run(self) -> None:
        async with self._services_up():
            if self._resolved.services and self._control.stopping:  # the services may not be up
                return
            async with self._grading.open(self._control, self._collection.warn):
                await self._grade_leftovers()
                await self._run_pending()

    @contextlib.asynccontextmanager
    async def _services_up(self) -> AsyncIterator[None]:
        """Inside, the run's services are up, unless the run is stopped while it waits for them."""

        async def waiting(names: Sequence[str]) -> None:
            self._progress.begin("serving", waiting_for=tuple(names))
            await self._show_progress()

        if not self._resolved.services:
            yield
            return
        directory = self._collection.directory
        assert directory is not None
        logs, redactor = directory.path / "services", self._resolved.redactor
        if self._resolved.rank is not None:
            logs /= str(directory.writer)
        async with serving(
            self._resolved.services, logs, control=self._control, redactor=redactor, on_waiting=waiting
        ):
            yield

    async def _grade_leftovers(self) -> None:
        if self._collection.to_grade:
            self._progress.begin("grading")
            await self._grading.grade_leftovers(
                self._control, self._progress, self._show_progress, self._show_group
            )

    async def _show_progress(self) -> None:
        if self._events.wants(ProgressChanged):
            await self._events.put(ProgressChanged(self._progress.snapshot()))

    async def _show_group(self, group: RolloutGroup) -> None:
        if self._events.wants(GroupReady):
            await self._events.put(GroupReady(group))

    async def _run_pending(self) -> None:
        if not self._collection.ledger.pending_count:
            return
        self._progress.begin("opening")
        try:
            if self._resolved.run.workers > 1:  # each of them opens a context of its own
                await self._run_slots()
            else:
                await self._run_here()
        finally:
            self._progress.end_running()
        await self._show_progress()

    async def _run_here(self) -> None:
        collection, context = self._collection, self._resolved.context
        if too_few := make_room(self._resolved.concurrency):
            collection.warn(too_few)
        try:
            with self._control.cancellable():
                blobs = collection.directory.blobs if collection.directory is not None else None
                await context.open(collection.warn, blobs)
            self._progress.begin("running")
            await self._run_slots()
        except asyncio.CancelledError:
            if not self._control.absorb():
                raise
        finally:
            await context.close()

    async def _run_slots(self) -> None:
        delivery = Delivery(
            self._collection.resume_state,
            self._grading,
            self._collection.groups,
            progress=self._progress,
            stop_conditions=self._stop_conditions,
            control=self._control,
            events=self._events,
        )
        await self._placement(delivery).run()
        await delivery.deliver_rest()

    def _placement(self, delivery: Delivery) -> Placement:
        run, collection = self._resolved.run, self._collection
        if run.workers == 1:
            return Scheduler(
                self._resolved.context,
                self._pending_slots(),
                collection.sink,
                delivery,
                concurrency=self._resolved.concurrency,
                adaptive=run.concurrency == "auto",
                retries=run.retries,
                progress=self._progress,
                control=self._control,
                semaphore=collection.semaphore,
            )
        assert collection.directory is not None
        return Workers(
            self._resolved.worker_spec,
            collection.directory.path,
            self._pending_slots(),
            delivery,
            shares=shares_of(self._resolved.concurrency, run.workers),
            writer=collection.directory.writer,
            wants_rollouts=delivery.wants_rollouts,
            progress=self._progress,
            control=self._control,
            warn=collection.warn,
        )

    def _pending_slots(self) -> SlotQueue:
        run, context, resume_state = self._resolved.run, self._resolved.context, self._collection.resume_state
        limits = {("env", name): most for name, most in run.env_concurrency.items()}
        limits |= {("agent", name): most for name, most in run.agent_concurrency.items()}

        def names(slot: Slot) -> tuple[Name, ...]:
            setup = context.episode_setup(slot.task)
            return ("env", setup.env_name), ("agent", setup.agent_name)

        pending = self._collection.plan.pending(self._collection.ledger)

        def next_slot() -> Slot | None:
            slot = next(pending, None)
            while slot is not None and resume_state.has_verdicts(slot):
                slot = retried(slot)
            return slot

        return SlotQueue(next_slot, limits=limits, names=names)

    def _make_grading(self) -> CollectGrading:
        resolved, collection = self._resolved, self._collection
        directory, generation = collection.directory, resolved.grading
        if directory is not None and directory.manifest is not None:
            generation = directory.manifest.grading
        return CollectGrading(
            resolved.run_scorers,
            resolved.run,
            collection.resume_state,
            collection.groups,
            generation=generation,
            log=collection.grading_sink,
            judgements=collection.judgements,
            blobs=directory.blobs if directory is not None else resolved.context.blobs,
            concurrency=resolved.concurrency,
            on_usage=self._stop_conditions.add_usage,
        )
