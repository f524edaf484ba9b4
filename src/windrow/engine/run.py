"""The scheduler: keeps `concurrency` episodes going until the plan is done, and commits what they give.

A slot is freed when its episode ends; the commit goes on beside the next episode, and at most 4 × `concurrency`
commits may wait for the disk. Stopping drains: what runs may finish. Cancelling ends what runs, and records that.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Literal

import msgspec

from windrow.engine.episode import Interrupted, attempt
from windrow.engine.world import Sink, World
from windrow.errors import WindrowError
from windrow.records import Rollout
from windrow.tasks.plan import Slot

COMMITS_WAITING = 4

Phase = Literal["opening", "grading", "running", "aggregating"]


class Progress(msgspec.Struct):
    """Counts of this call: what was to be done, what is committed, what is running.

    `failures` counts attempts by the owner/kind of their error, `left` what of `planned` is not settled by agent;
    `graded` of `to_grade` rollouts of earlier calls are judged. `phase` says what is being done now.
    """

    planned: int
    settled: int = 0
    attempts: int = 0
    failed: int = 0
    cancelled: int = 0
    in_flight: int = 0
    rewards: int = 0
    reward_sum: float = 0.0
    tokens: int = 0
    failures: dict[str, int] = {}
    examples: dict[str, str] = {}  # the first message of each kind of failure
    left: dict[str, int] = {}
    to_grade: int = 0
    graded: int = 0
    phase: Phase = "opening"

    def count(self, rollout: Rollout, *, settled: bool) -> None:
        self.attempts += 1
        self.settled += settled
        self.failed += rollout.status == "failed"
        self.cancelled += rollout.status == "cancelled"
        self.tokens += rollout.usage.completion_tokens
        if settled and rollout.agent in self.left:
            self.left[rollout.agent] -= 1
        self.judge(rollout)

    def judge(self, rollout: Rollout) -> None:
        """Count a verdict, or what stood in its way; what is pending is counted once it is graded."""
        if rollout.grade == "pending":
            return
        if rollout.error is not None:
            kind = f"{rollout.error.owner}/{rollout.error.kind}"
            self.failures[kind] = self.failures.get(kind, 0) + 1
            self.examples.setdefault(kind, rollout.error.message)
        if rollout.reward is not None:
            self.rewards += 1
            self.reward_sum += rollout.reward


class Control:
    """How a run is stopped from outside: `stop` lets running episodes finish, `cancel` ends them."""

    def __init__(self) -> None:
        self.stopping = False
        self.cancelled = False
        self._cancellable: set[asyncio.Task[object]] = set()
        self._cut: Counter[asyncio.Task[object]] = Counter()  # cancelled by this control, not absorbed yet

    def stop(self) -> None:
        self.stopping = True

    def cancel(self) -> None:
        self.stopping = self.cancelled = True
        for task in self._cancellable:
            self._cut[task] += 1
            task.cancel()

    @contextlib.contextmanager
    def cancellable(self) -> Iterator[None]:
        """What the current task does inside may be cut short by `cancel`; what it does outside may not."""
        task = asyncio.current_task()
        assert task is not None
        self._cancellable.add(task)
        try:
            yield
        finally:
            self._cancellable.discard(task)

    def absorb(self) -> bool:
        """Whether the cancellation just caught was this control's own alone; if so the current task goes on.

        A task group that gives up (a full disk) cancels its tasks too, and that one is not to be absorbed.
        """
        task = asyncio.current_task()
        if task is None or task not in self._cut:
            return False
        others = task.cancelling()
        for _ in range(self._cut.pop(task)):
            others = task.uncancel()
        return not others


class Scheduler:
    """Runs slots. `on_commit(slot, rollout, settled)` is awaited after each commit, before its place is freed."""

    def __init__(
        self,
        world: World,
        sink: Sink,
        *,
        concurrency: int,
        retries: int,
        retry: Callable[[Slot], Slot],
        progress: Progress,
        control: Control,
        on_commit: Callable[[Slot, Rollout, bool], Awaitable[None]],
        gate: asyncio.Semaphore | None = None,
    ) -> None:
        """`gate`: a semaphore that the caller shares between runs; every episode holds it."""
        self._world = world
        self._sink = sink
        self._concurrency = concurrency
        self._retries = retries
        self._retry = retry
        self._progress = progress
        self._control = control
        self._on_commit = on_commit
        self._gate = gate or contextlib.nullcontext()
        self._waiting = asyncio.Semaphore(COMMITS_WAITING * concurrency)

    async def run(self, slots: Iterator[Slot]) -> None:
        """Return when every slot is committed, or, after a stop, when what was running is."""
        try:
            async with asyncio.TaskGroup() as group:
                for slot in itertools.islice(slots, self._concurrency):
                    group.create_task(self._work(group, slot, slots))
        except* WindrowError as problems:
            raise problems.exceptions[0] from None

    async def _work(self, group: asyncio.TaskGroup, first: Slot, slots: Iterator[Slot]) -> None:
        for slot in itertools.chain((first,), slots):
            if self._control.stopping:
                return
            await self._settle(group, slot)

    async def _settle(self, group: asyncio.TaskGroup, slot: Slot) -> None:
        """Attempt a slot until it is settled or its retries are used up; every attempt is committed."""
        tries = 0
        while True:
            rollout = await self._attempt(slot)
            again = rollout.status == "failed" and rollout.error is not None and rollout.error.retryable
            again = again and tries < self._retries and not self._control.stopping
            await self._waiting.acquire()
            group.create_task(self._commit(slot, rollout, settled=not again))
            if not again:
                return
            tries += 1
            slot = self._retry(slot)

    async def _attempt(self, slot: Slot) -> Rollout:
        self._progress.in_flight += 1
        try:
            with self._control.cancellable():
                async with self._gate:
                    return await attempt(slot, self._world)
        except Interrupted as interrupted:
            if not self._control.absorb():
                raise
            return interrupted.rollout
        finally:
            self._progress.in_flight -= 1

    async def _commit(self, slot: Slot, rollout: Rollout, *, settled: bool) -> None:
        try:
            await self._sink.commit((rollout,))
            self._progress.count(rollout, settled=settled)
            with self._control.cancellable():
                await self._on_commit(slot, rollout, settled)
        except asyncio.CancelledError:
            if not self._control.absorb():
                raise
        finally:
            self._waiting.release()
