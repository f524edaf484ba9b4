"""The scheduler: keeps episodes going until the plan is done, and commits what they give.

A place is freed when its episode ends; the commit goes on beside the next episode, and at most 4 × as many commits as
episodes may wait for the disk or for who is told. Stopping drains: what runs may finish. Cancelling ends what runs,
and records that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from windrow.engine.adaptive_limit import AdaptiveLimit
from windrow.engine.attempt import attempt
from windrow.engine.commit_queue import CommitQueue, Deliver, Deliveries, Finished, OnDurable
from windrow.engine.context import RunContext, Sink
from windrow.engine.control import Control
from windrow.engine.episode import Interrupted
from windrow.engine.progress import Progress
from windrow.engine.slot_queue import SlotQueue
from windrow.errors import WindrowError
from windrow.records import ErrorRecord, Rollout
from windrow.tasks.plan import Slot, retried
from windrow.util.cancellation import is_cancelled

COMMITS_WAITING = 4


class Scheduler:
    """Runs slots. `on_durable` is called with each batch that is committed; `deliver` is awaited for each attempt that it
    returns."""

    def __init__(
        self,
        context: RunContext,
        sink: Sink,
        *,
        pace: AdaptiveLimit,
        retries: int,
        progress: Progress,
        control: Control,
        on_durable: OnDurable,
        deliver: Deliver,
        spent: Callable[[Rollout], None] = lambda rollout: None,
        gate: asyncio.Semaphore | None = None,
    ) -> None:
        """`spent` is called as soon as an attempt has ended.

        `gate`: a semaphore that the caller shares between runs; every episode holds it.
        """
        self._limit = pace
        self._retries = retries
        self._progress = progress
        self._control = control
        self._spent = spent
        self._gate = gate
        self._running = 0
        if pace.adaptive:
            context = context.observed_by(lambda call: pace.saw(call.seconds, overloaded=call.overloaded))
        self._world = context
        self._deliveries = Deliveries(deliver, control, room=COMMITS_WAITING * pace.most)
        self._commits = CommitQueue(sink, self._deliveries, on_durable)

    async def run(self, waiting: SlotQueue, until: asyncio.Event | None = None) -> None:
        """Return when every slot is committed, or, after a stop, when what was running is.

        With `until`, slots may still be added before it is set; `pace.grown()` then says that there are some.
        """
        try:
            async with asyncio.TaskGroup() as commits:
                commits.create_task(self._commits.write())
                commits.create_task(self._deliveries.run())
                async with asyncio.TaskGroup() as episodes:
                    self._limit.grown = lambda: self._fill(episodes, waiting)
                    self._fill(episodes, waiting)
                    if until is not None:
                        await until.wait()
                self._commits.close()
        except* WindrowError as problems:
            await self._commits.rescue()
            raise first_of(problems) from None

    def _fill(self, episodes: asyncio.TaskGroup, waiting: SlotQueue) -> None:
        """Start as many episodes as there is room for."""
        while self._running < self._limit.limit and not self._control.stopping:
            slot = waiting.take()
            if slot is None:
                return
            self._running += 1
            episodes.create_task(self._work(episodes, slot, waiting))

    async def _work(self, episodes: asyncio.TaskGroup, first: Slot, waiting: SlotQueue) -> None:
        """One slot after another, as long as there is a place for it."""
        slot: Slot | None = first
        while slot is not None:
            await self._settle(slot)
            waiting.release(slot)
            stays = self._running <= self._limit.limit and not self._control.stopping
            slot = waiting.take() if stays else None
        self._running -= 1
        if waiting.limited:
            self._fill(episodes, waiting)  # what this one held back may start

    async def _settle(self, slot: Slot) -> None:
        """Attempt a slot until it is settled or its retries are used up; every attempt is committed."""
        tries = 0
        while True:
            rollouts = await self._attempt(slot)
            for rollout in rollouts:
                self._spent(rollout)
            again = is_retryable(rollouts) and tries < self._retries and not self._control.stopping
            await self._commits.put(Finished(slot, rollouts, not again, rollouts))
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
                if self._gate is None:
                    ended += await attempt(slot, self._world)
                    return
                async with self._gate:
                    ended += await attempt(slot, self._world)
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


def first_of(problems: BaseExceptionGroup[WindrowError]) -> WindrowError:
    """The first error of a group, however deep it stands."""
    problem: BaseException = problems
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    assert isinstance(problem, WindrowError)
    return problem
