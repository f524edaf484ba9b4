"""User code in threads: what it gives comes back, and what never comes back holds up nobody."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.support.fake_clock import LIMIT_S, time_passes
from windrow.engine.episode_scoring import within
from windrow.util.threads import AT_ONCE, in_thread


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def test_the_result_comes_back_and_the_loop_goes_on_meanwhile(released: threading.Event) -> None:
    waiting = asyncio.ensure_future(in_thread(lambda: released.wait(60)))
    assert await in_thread(divmod, 7, 2) == (3, 1)
    released.set()
    assert await waiting


async def test_what_it_raises_comes_back() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)


@pytest.mark.parametrize("ending", [sys.exit, lambda: next(iter(()))])
async def test_what_would_end_more_than_the_call_ends_the_call_alone(ending: object) -> None:
    with pytest.raises(RuntimeError, match=r"SystemExit|StopIteration"):
        await in_thread(ending)  # type: ignore[arg-type]


async def test_calls_that_were_given_up_leave_room_for_others(released: threading.Event) -> None:
    hanging = [asyncio.ensure_future(in_thread(released.wait, 60)) for _ in range(AT_ONCE)]
    await asyncio.sleep(0.05)
    for call in hanging:
        call.cancel()
    await asyncio.wait(hanging)
    async with asyncio.timeout(30):
        assert await in_thread(lambda: "done") == "done"


async def test_only_so_many_run_at_once(released: threading.Event) -> None:
    lock = threading.Lock()
    running = most = 0

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        released.wait(0.02)
        with lock:
            running -= 1

    await asyncio.gather(*(in_thread(work) for _ in range(3 * AT_ONCE)))
    assert 1 < most <= AT_ONCE


def test_each_loop_has_its_own_room(released: threading.Event) -> None:
    async def crowd() -> list[int]:
        return await asyncio.gather(*(in_thread(abs, -n) for n in range(2 * AT_ONCE)))

    assert asyncio.run(crowd()) == asyncio.run(crowd()) == list(range(2 * AT_ONCE))


async def test_waiting_for_a_thread_takes_none_of_a_scorers_time(released: threading.Event) -> None:
    """Right answers behind slow ones: they waited for a thread until their time was up, and had not begun."""
    slow = [asyncio.ensure_future(in_thread(released.wait, 60)) for _ in range(AT_ONCE)]
    right = [asyncio.ensure_future(within(LIMIT_S, in_thread(lambda: "done"), "quick")) for _ in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
    time_passes()
    for _ in range(3):
        await asyncio.sleep(0)
    released.set()
    assert await asyncio.gather(*right) == ["done"] * 3
    await asyncio.gather(*slow)
