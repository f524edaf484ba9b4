"""Deadlines: what `asyncio.timeout` promises, on a timer that many share."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.support.fake_clock import LIMIT_S, time_passes
from windrow.util import deadlines
from windrow.util.deadlines import Deadline

Block = Callable[[float], object]


@asynccontextmanager
async def shared_timer(limit_s: float) -> AsyncIterator[Deadline]:
    with Deadline(limit_s) as deadline:
        yield deadline


async def time_is_up() -> None:
    time_passes()
    await asyncio.Event().wait()


async def test_a_block_that_takes_too_long_raises_timeout_error() -> None:
    with pytest.raises(TimeoutError):
        with Deadline(LIMIT_S) as deadline:
            await time_is_up()
    assert deadline.expired()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_block_in_time_gives_its_result_and_leaves_the_task_alone() -> None:
    with Deadline(LIMIT_S) as deadline:
        await asyncio.sleep(0)
    time_passes()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not deadline.expired()


async def test_deadlines_of_one_length_expire_each_in_its_own_time() -> None:
    began = [asyncio.Event(), asyncio.Event()]
    ended: list[str] = []

    async def work(name: str, started: asyncio.Event) -> None:
        try:
            with Deadline(LIMIT_S):
                started.set()
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append(name)

    first = asyncio.create_task(work("first", began[0]))
    await began[0].wait()
    time_passes(0.6 * LIMIT_S)
    second = asyncio.create_task(work("second", began[1]))
    await began[1].wait()
    time_passes(0.6 * LIMIT_S)
    await first
    assert ended == ["first"]
    assert not second.done()
    time_passes(0.6 * LIMIT_S)
    await second
    assert ended == ["first", "second"]


async def test_the_timer_goes_on_for_the_next_when_the_oldest_is_met() -> None:
    with Deadline(LIMIT_S):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        with Deadline(LIMIT_S):
            await time_is_up()


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def work() -> None:
        with Deadline(LIMIT_S):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("block", [asyncio.timeout, shared_timer], ids=["asyncio", "ours"])
async def test_a_cancellation_beside_an_expiry_wins(block: Block) -> None:
    """Of both in one turn of the loop, the one from outside must not be swallowed."""

    async def work() -> None:
        async with block(LIMIT_S):  # type: ignore[attr-defined]
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    time_passes()
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


@pytest.mark.parametrize("block", [asyncio.timeout, shared_timer], ids=["asyncio", "ours"])
async def test_another_error_of_a_block_that_expired_is_that_error(block: Block) -> None:
    async def work() -> None:
        async with block(LIMIT_S):  # type: ignore[attr-defined]
            try:
                await time_is_up()
            except asyncio.CancelledError:
                raise ValueError("on the way out") from None

    with pytest.raises(ValueError, match="on the way out"):
        await work()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("block", [asyncio.timeout, shared_timer], ids=["asyncio", "ours"])
async def test_of_two_blocks_one_in_the_other_the_outer_may_expire(block: Block) -> None:
    async def work() -> None:
        async with block(LIMIT_S):  # type: ignore[attr-defined]
            async with block(10 * LIMIT_S):  # type: ignore[attr-defined]
                await time_is_up()
            pytest.fail("the outer deadline has expired")

    with pytest.raises(TimeoutError):
        await work()


async def test_no_time_passes_while_a_deadline_is_paused() -> None:
    with Deadline(LIMIT_S) as deadline:
        deadline.pause()
        time_passes()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        deadline.resume()
        await asyncio.sleep(0)
    assert not deadline.expired()


async def test_a_resumed_deadline_has_the_time_that_was_left() -> None:
    async def work() -> None:
        with Deadline(LIMIT_S) as deadline:
            time_passes(0.6 * LIMIT_S)
            deadline.pause()
            deadline.resume()
            time_passes(0.6 * LIMIT_S)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await work()


async def test_a_deadline_whose_block_was_left_is_not_started_again() -> None:
    """A scorer may leave a task behind that asks a judge."""
    with Deadline(LIMIT_S) as deadline:
        deadline.pause()
    deadline.resume()
    deadline.pause()
    deadline.resume()
    time_passes()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not deadline.expired()


def test_each_loop_has_timers_of_its_own() -> None:
    async def work() -> None:
        with pytest.raises(TimeoutError):
            with Deadline(LIMIT_S):
                await time_is_up()

    asyncio.run(work())
    asyncio.run(work())


async def test_lengths_that_nobody_waits_for_are_forgotten() -> None:
    """Rows may bring limits of their own: a million lengths must not stay in memory."""
    before = set(deadlines._queues)
    for number in range(100):
        with Deadline(1 + number / 1000):
            await asyncio.sleep(0)
    time_passes()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert set(deadlines._queues) <= before


async def test_a_resumed_deadline_that_is_met_leaves_nothing_behind() -> None:
    await asyncio.sleep(0)
    before = dict(deadlines._queues)
    queues = weakref.WeakSet[object]()
    for _ in range(100):
        with Deadline(LIMIT_S) as deadline:
            deadline.pause()
            deadline.resume()
            queues.add(deadline._queue)
        del deadline
    gc.collect()
    assert len(queues) == 0
    assert len(deadlines._queues) <= len(before) + 1
