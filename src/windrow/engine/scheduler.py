"""The scheduler: keeps episodes running until the plan is done, and commits their rollouts.

The next episode starts when one ends, and does not wait for its commit. Up to four finished attempts for each episode that may
run can wait to be written and delivered; then episodes wait too. Stopping lets running episodes finish; cancelling ends them,
and records that.
"""

from __future__ import annotations

import asyncio

import msgspec

from windrow.engine.adaptive_limit import AdaptiveLimit
from windrow.engine.attempt import attempt
from windrow.engine.commit_queue import AttemptObserver, CommitQueue, Deliveries, FinishedAttempt, Sink
from windrow.engine.context import RunContext
from windrow.engine.control import Control
from windrow.engine.episode import Interrupted
from windrow.engine.progress import Progress
from windrow.engine.slot_queue import SlotQueue
from windrow.errors import WindrowError, first_of
from windrow.policies.calls import CallOutcome
from windrow.records import ErrorRecord, Rollout
from windrow.tasks.plan import Slot, retried
from windrow.util.cancellation import is_cancelled

UNDELIVERED_PER_EPISODE = 4  # finished attempts that may wait, for each episode that may run


class Scheduler:
    """Runs slots, as many at a time as `concurrency` allows; `adaptive`: as many as the endpoint keeps up with."""

    def __init__(
        self,
        context: RunContext,
        slots: SlotQueue,
        sink: Sink,
        observer: AttemptObserver,
        *,
        concurrency: int,
        adaptive: bool,
        retries: int,
        progress: Progress,
        control: Control,
        semaphore: asyncio.Semaphore | None = None,
    ) -> None:
        """Every episode also holds `semaphore`, which the caller shares between runs."""
        self._slots = slots
        self._observer = observer
        self._limit = AdaptiveLimit(concurrency, adaptive=adaptive, on_growth=self.start_more)
        self._retries = retries
        self._progress = progress
        self._control = control
        self._semaphore = semaphore
        self._running = 0
        self._episodes: asyncio.TaskGroup | None = None  # while slots may start
        self._context = context.observed_by(self._on_call) if adaptive else context
        self._deliveries = Deliveries(observer, control, room=UNDELIVERED_PER_EPISODE * concurrency)
        self._commits = CommitQueue(sink, self._deliveries, observer)

    async def run(self, until: asyncio.Event | None = None) -> None:
        """Return when every slot is committed, or, after a stop, when the running ones are.

        With `until`, slots may still be added before it is set; call `start_more` after adding some.
        """
        try:
            async with asyncio.TaskGroup() as commits:
                commits.create_task(self._commits.write())
                commits.create_task(self._deliveries.run())
                async with asyncio.TaskGroup() as self._episodes:
                    self.start_more()
                    if until is not None:
                        await until.wait()
                self._commits.close()
        except* WindrowError as problems:
            await self._commits.rescue()
            raise first_of(problems) from None

    def _on_call(self, call: CallOutcome) -> None:
        self._limit.call_ended(call.seconds, overloaded=call.overloaded)

    def start_more(self) -> None:
        """Start as many episodes as there is room for."""
        while self._episodes is not None and self._running < self._limit.limit and not self._control.stopping:
            slot = self._slots.take()
            if slot is None:
                return
            self._running += 1
            self._episodes.create_task(self._work(slot))

    async def _work(self, first: Slot) -> None:
        """Run one slot after another, as long as there is room."""
        slot: Slot | None = first
        while slot is not None:
            await self._settle(slot)
            self._slots.release(slot)
            stays = self._running <= self._limit.limit and not self._control.stopping
            slot = self._slots.take() if stays else None
        self._running -= 1
        if self._slots.limited:
            self.start_more()  # slots that this one held back may start

    async def _settle(self, slot: Slot) -> None:
        """Attempt a slot until it is settled or its retries are used up; every attempt is committed."""
        tries = 0
        while True:
            rollouts = await self._attempt(slot)
            for rollout in rollouts:
                self._observer.on_attempt_end(rollout)
            again = is_retryable(rollouts) and tries < self._retries and not self._control.stopping
            await self._commits.put(FinishedAttempt(slot, rollouts, not again, rollouts))
            if not again:
                return
            tries += 1
            slot = retried(slot)

    async def _attempt(self, slot: Slot) -> tuple[Rollout, ...]:
        """In a task of its own: user code that cancels its task fails its attempt, and takes no other with it."""
        ended: list[Rollout] = []
        self._progress.in_flight += 1
        try:
            await asyncio.create_task(self._play(slot, ended))
        except asyncio.CancelledError as problem:
            if is_cancelled(problem) or not ended:
                raise
        finally:
            self._progress.in_flight -= 1
        return tuple(ended)

    async def _play(self, slot: Slot, ended: list[Rollout]) -> None:
        try:
            with self._control.cancellable():
                if self._semaphore is None:
                    ended += await attempt(slot, self._context)
                    return
                async with self._semaphore:
                    ended += await attempt(slot, self._context)
        except Interrupted as interrupted:
            if not self._control.absorb():
                ended += map(_broken_off, interrupted.rollouts)
                raise
            reason = self._control.reason
            ended += [msgspec.structs.replace(rollout, reason=reason) for rollout in interrupted.rollouts]


def _broken_off(rollout: Rollout) -> Rollout:
    """A rollout whose task was cancelled by nobody but the code that it runs. One that had ended stays as it is."""
    if rollout.status != "cancelled":
        return rollout
    error = ErrorRecord(
        owner="env",
        kind="CancelledError",
        message="the episode's task was cancelled by code that runs in it",
        phase="agent",
        retryable=True,
    )
    return msgspec.structs.replace(rollout, status="failed", stop="error", reason=None, error=error)


def is_retryable(rollouts: tuple[Rollout, ...]) -> bool:
    """Whether an attempt failed, or was broken off by who played it, and may be made again.

    Its seats fail together, and alike. What this process breaks off is not made again: it is stopping.
    """
    first = rollouts[0]
    if first.status == "cancelled":
        return first.reason == "interrupted"
    return first.status == "failed" and first.error is not None and first.error.retryable
