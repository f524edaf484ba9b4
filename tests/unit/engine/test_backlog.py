"""The backlog: places are limited, given in order, and never lost."""

from __future__ import annotations

import asyncio

import pytest

from windrow.engine.backlog import Backlog


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_no_more_enter_than_there_are_places() -> None:
    backlog = Backlog(2)
    inside: list[int] = []

    async def enter(number: int) -> None:
        await backlog.enter()
        inside.append(number)

    tasks = [asyncio.create_task(enter(number)) for number in range(5)]
    await settle()
    assert inside == [0, 1]
    backlog.leave(2)
    await settle()
    assert inside == [0, 1, 2, 3]
    backlog.leave(4)
    await asyncio.gather(*tasks)
    assert inside == [0, 1, 2, 3, 4]


async def test_places_that_nobody_waits_for_are_kept() -> None:
    backlog = Backlog(1)
    await backlog.enter()
    backlog.leave(1)
    await asyncio.wait_for(backlog.enter(), 60)


async def test_a_cancelled_waiter_takes_no_place() -> None:
    backlog = Backlog(1)
    await backlog.enter()
    gives_up = asyncio.create_task(backlog.enter())
    waits = asyncio.create_task(backlog.enter())
    await settle()
    gives_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gives_up
    backlog.leave(1)
    await asyncio.wait_for(waits, 60)


async def test_a_place_that_is_given_back_as_a_waiter_gives_up_goes_to_the_next() -> None:
    backlog = Backlog(1)
    await backlog.enter()
    gives_up = asyncio.create_task(backlog.enter())
    waits = asyncio.create_task(backlog.enter())
    await settle()
    gives_up.cancel()
    backlog.leave(1)  # before the task that was cancelled has run again
    with pytest.raises(asyncio.CancelledError):
        await gives_up
    await asyncio.wait_for(waits, 60)


async def test_a_waiter_that_is_cancelled_as_it_gets_its_place_passes_it_on() -> None:
    backlog = Backlog(1)
    await backlog.enter()
    gives_up = asyncio.create_task(backlog.enter())
    waits = asyncio.create_task(backlog.enter())
    await settle()
    backlog.leave(1)
    gives_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gives_up
    await asyncio.wait_for(waits, 60)


async def test_who_comes_later_does_not_overtake_who_waits() -> None:
    backlog = Backlog(1)
    await backlog.enter()
    order: list[str] = []

    async def enter(name: str) -> None:
        await backlog.enter()
        order.append(name)

    first = asyncio.create_task(enter("first"))
    await settle()
    backlog.leave(1)
    second = asyncio.create_task(enter("second"))
    await settle()
    assert order == ["first"]
    backlog.leave(1)
    await asyncio.gather(first, second)
    assert order == ["first", "second"]
