"""Rate limits: requests and tokens a minute, by an injected clock; and once over the wire."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import collected
from tests.support.model_server import ModelServer
from windrow.policies.rate_limits import Rates


class Timer:
    def __init__(self, clock: Clock, at: float, what: Callable[[], None]) -> None:
        self.what: Callable[[], None] | None = what
        heapq.heappush(clock.timers, (at, id(self), self))

    def cancel(self) -> None:
        self.what = None


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[tuple[float, int, Timer]] = []

    def __call__(self) -> float:
        return self.now

    def later(self, seconds: float, what: Callable[[], None]) -> Timer:
        return Timer(self, self.now + seconds, what)

    async def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timers and self.timers[0][0] <= end:
            at, _, timer = heapq.heappop(self.timers)
            self.now = max(self.now, at)
            if timer.what is not None:
                timer.what()
            for _ in range(3):
                await asyncio.sleep(0)
        self.now = end


def rates(clock: Clock, requests: float | None = None, tokens: float | None = None, **options: Any) -> Rates:
    return Rates(requests, tokens, clock=clock, later=clock.later, **options)


async def sent(
    limit: Rates, clock: Clock, log: list[tuple[int, float]], number: int, tokens: int = 0
) -> None:
    turn = limit.take()
    if turn is not None:
        await turn
    log.append((number, clock.now))
    limit.settle(tokens)


async def test_requests_are_spread_over_the_minute_in_the_order_they_came() -> None:
    clock, log = Clock(), list[tuple[int, float]]()
    limit = rates(clock, requests=60)
    async with asyncio.TaskGroup() as group:
        for number in range(200):
            group.create_task(sent(limit, clock, log, number))
        await asyncio.sleep(0)
        await clock.passes(60)
        assert 59 <= len(log) <= 62
        await clock.passes(150)
    assert [number for number, _ in log] == list(range(200))
    times = [at for _, at in log]
    assert all(late - early >= 59.9 for early, late in zip(times, times[62:], strict=False))


async def test_a_lull_is_made_up_for_by_a_second_at_most() -> None:
    clock, log = Clock(), list[tuple[int, float]]()
    limit = rates(clock, requests=600)
    await clock.passes(3600)
    tasks = [asyncio.create_task(sent(limit, clock, log, number)) for number in range(30)]
    await asyncio.sleep(0)
    assert 10 <= len(log) <= 12
    await clock.passes(10)
    await asyncio.gather(*tasks)


async def test_tokens_count_as_the_server_tells() -> None:
    clock, log = Clock(), list[tuple[int, float]]()
    limit = rates(clock, tokens=6000, max_tokens=4000)  # 100 a second
    async with asyncio.TaskGroup() as group:
        for number in range(40):
            group.create_task(sent(limit, clock, log, number, tokens=50))
        await asyncio.sleep(0)
        await clock.passes(10)
        assert 18 <= len(log) <= 24
        await clock.passes(10)
    assert [number for number, _ in log] == list(range(40))


async def test_calls_in_flight_count_as_much_as_calls_use_on_average() -> None:
    clock = Clock()
    limit = rates(clock, tokens=60_000, max_tokens=500)  # 1,000 a second, and a second may be made up for
    await clock.passes(10)
    assert [limit.take() is None for _ in range(3)] == [True, True, True]
    turn = limit.take()
    assert turn is not None
    waiting = asyncio.ensure_future(turn)
    await asyncio.sleep(0)
    assert not waiting.done()
    limit.settle(0)  # one of them failed: nothing was used
    await asyncio.wait_for(waiting, 10)


async def test_the_average_is_learnt_from_what_the_server_tells() -> None:
    clock = Clock()
    limit = rates(clock, tokens=60_000, max_tokens=500)
    assert limit.take() is None
    limit.settle(100)
    await clock.passes(10)
    assert [limit.take() is None for _ in range(11)] == [True] * 11  # of 100 each; of 500, three


async def test_a_newcomer_waits_behind_those_who_wait() -> None:
    clock, log = Clock(), list[tuple[int, float]]()
    limit = rates(clock, requests=60)
    tasks = [asyncio.create_task(sent(limit, clock, log, number)) for number in range(3)]
    await asyncio.sleep(0)
    clock.now += 1.5  # the next one may go, and has not been told yet
    tasks.append(asyncio.create_task(sent(limit, clock, log, 3)))
    await asyncio.sleep(0)
    await clock.passes(10)
    await asyncio.gather(*tasks)
    assert [number for number, _ in log] == [0, 1, 2, 3]


async def test_who_gives_up_waiting_takes_nothing() -> None:
    clock, log = Clock(), list[tuple[int, float]]()
    limit = rates(clock, requests=60)
    tasks = [asyncio.create_task(sent(limit, clock, log, number)) for number in range(10)]
    await asyncio.sleep(0)
    for task in tasks[2:9]:
        task.cancel()
    await clock.passes(5)
    assert [number for number, _ in log] == [0, 1, 9]


@pytest.mark.slow
@pytest.mark.parametrize("option", [{"requests_per_minute": 600}, {"tokens_per_minute": 2400}])
async def test_a_run_keeps_to_its_rate_and_waiting_is_not_the_calls_time(
    stub: Callable[..., ModelServer], tmp_path: Path, option: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    came: list[float] = []

    def reply(body: dict[str, Any], n: int) -> str:
        came.append(time.monotonic())
        return "4 4"

    rows = [{"prompt": f"{n} + 4?", "answer": "4"} for n in range(24)]  # three tokens and two
    options: dict[str, Any] = {"model": "stub", "base_url": stub(reply).url, "out": str(tmp_path / "run")}
    rollouts = await collected(rows, **options, **option, max_tokens=4, call_timeout=0.9, retries=0)
    assert [r.status for r in rollouts] == ["completed"] * 24
    assert max(came) - min(came) >= 1.0  # 24 calls, of which 11 may go at once
