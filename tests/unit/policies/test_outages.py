"""An endpoint that fails: when it is paused, what waits, and how the run goes on or stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import collected, until
from tests.support.fake_clock import LIMIT_S, time_passes
from tests.support.model_server import ModelServer
from windrow import Rollout
from windrow.policies import endpoint_health
from windrow.policies.endpoint_pool import EndpointPool

pytestmark = pytest.mark.slow

Start = Callable[..., ModelServer]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused endpoint is asked again after a moment."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(endpoint_health, "FIRST_PAUSE_S", 0.05)


def rows(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{n} + 0?", "answer": str(n)} for n in range(count)]


def echo(body: dict[str, Any], n: int) -> str:
    return str(body["messages"][0]["content"]).partition(" ")[0]


def failing(body: dict[str, Any], n: int) -> Any:
    return (500, {}, {"error": {"message": "out of order"}})


class Told(list[str]):
    """What the user was told, and waiting for it."""

    def __init__(self) -> None:
        self._came = asyncio.Event()

    def __call__(self, message: str) -> None:
        self.append(message)
        self._came.set()

    async def first(self) -> str:
        await self._came.wait()
        return self[0]


def collecting(server: ModelServer, out: Path, told: Told, count: int, **options: Any) -> Any:
    options = {"model": "stub", "base_url": server.url, "out": str(out), "on_warning": told, **options}
    return asyncio.create_task(collected(rows(count), **options))


def statuses(rollouts: list[Rollout]) -> set[str]:
    return {rollout.status for rollout in rollouts}


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_a_server_that_stops_and_starts_again_fails_nothing(
    stub: Start, tmp_path: Path, concurrency: int
) -> None:
    told = Told()

    def reply(body: dict[str, Any], n: int) -> str:
        if n == 5:
            server.latency_s = 60  # who comes later is in flight when the server stops
        return echo(body, n)

    server = stub(reply)
    # The wait is longer than a call may take.
    run = collecting(server, tmp_path / "run", told, 30, concurrency=concurrency, call_timeout=30.0)
    await until(lambda: server.latency_s and server.in_flight == concurrency)
    await asyncio.to_thread(server.stop)
    assert (await told.first()).startswith(f"{server.url} is paused, since call after call failed there (")
    assert told[0].endswith("calls wait until it answers again")
    again = stub(echo, port=server.port)
    rollouts = await run
    assert [r.reward for r in rollouts] == [1.0] * 30  # one line a rollout: no attempt failed
    assert len(told) == 2
    assert told[1].startswith(f"{server.url} is back after ")
    assert again.completions >= concurrency


async def test_waiting_for_an_endpoint_is_not_the_calls_time(
    stub: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    waiting = 0
    wait = EndpointPool.wait

    async def counted(pool: EndpointPool) -> None:
        nonlocal waiting
        waiting += 1
        await wait(pool)
        waiting -= 1

    monkeypatch.setattr(EndpointPool, "wait", counted)
    server = stub(echo, latency_s=60)
    run = collecting(server, tmp_path / "run", told, 5, call_timeout=LIMIT_S, retries=0)
    await until(lambda: server.in_flight >= 5)
    await asyncio.to_thread(server.stop)
    await until(lambda: waiting == 5)
    time_passes()  # longer than a call may take
    stub(echo, port=server.port)
    assert [r.reward for r in await run] == [1.0] * 5


async def test_an_outage_that_lasts_fails_what_is_left_as_infrastructures(
    stub: Start, tmp_path: Path
) -> None:
    told = Told()
    server = stub(echo, latency_s=60)
    run = collecting(server, tmp_path / "run", told, 6, concurrency=3, max_outage=0.3, retries=0)
    await until(lambda: server.in_flight >= 3)
    await asyncio.to_thread(server.stop)
    rollouts = await run
    errors = {(r.error.owner, r.error.kind, r.error.retryable) for r in rollouts if r.error}
    assert errors == {("infra", "outage", True)}
    assert statuses(rollouts) == {"failed"}
    message = next(r.error.message for r in rollouts if r.error)
    assert f"{server.url}: no answer for " in message
    assert "Run the same command again when the server is up; --max-outage S waits longer" in message
    server = stub(echo, port=server.port)
    assert [r.reward for r in await collecting(server, tmp_path / "run", told, 6)] == [1.0] * 6


async def test_without_patience_an_outage_is_not_waited_for(stub: Start, tmp_path: Path) -> None:
    told = Told()
    server = stub(echo, latency_s=60)
    run = collecting(server, tmp_path / "run", told, 3, max_outage=0.0, retries=0)
    await until(lambda: server.in_flight >= 3)
    await asyncio.to_thread(server.stop)
    assert {r.error.kind for r in await run if r.error} == {"outage"}


async def test_a_prompt_on_which_the_server_stumbles_is_no_outage(stub: Start, tmp_path: Path) -> None:
    told = Told()
    server = stub(lambda body, n: failing(body, n) if echo(body, n) in "01" else echo(body, n))
    rollouts = await collecting(server, tmp_path / "run", told, 4, concurrency=1, retries=0, call_retries=9)
    by_prompt = {r.task["prompt"]: r for r in rollouts}
    assert [by_prompt[row["prompt"]].reward for row in rows(4)] == [None, None, 1.0, 1.0]
    assert told == []


async def test_errors_of_the_server_for_everyone_are_an_outage_told_once(stub: Start, tmp_path: Path) -> None:
    told = Told()
    server = stub(lambda body, n: failing(body, n) if n < 25 else echo(body, n))
    rollouts = await collecting(server, tmp_path / "run", told, 12, concurrency=4, call_retries=20)
    assert [r.reward for r in rollouts] == [1.0] * 12
    assert ["500: out of order" in told[0], "is back after" in told[1], len(told)] == [True, True, 2]
    assert server.requests["/v1/models"] >= 3  # at the start, and once a pause


async def test_failures_between_answers_are_no_outage(stub: Start, tmp_path: Path) -> None:
    told = Told()
    server = stub(lambda body, n: failing(body, n) if n % 4 else echo(body, n))
    rollouts = await collecting(server, tmp_path / "run", told, 12, concurrency=1, call_retries=20)
    assert ([r.reward for r in rollouts], told) == ([1.0] * 12, [])


@pytest.mark.parametrize("status", [408, 409, 429])
async def test_an_endpoint_that_is_only_busy_is_not_paused(stub: Start, tmp_path: Path, status: int) -> None:
    told = Told()
    server = stub(lambda body, n: (status, {}, "busy") if n < 20 else echo(body, n))
    rollouts = await collecting(server, tmp_path / "run", told, 4, call_retries=20)
    assert (statuses(rollouts), told) == ({"completed"}, [])
    assert server.requests["/v1/models"] == 1


async def test_a_run_that_is_cancelled_in_an_outage_ends(stub: Start, tmp_path: Path) -> None:
    told = Told()
    server = stub(echo, latency_s=60)
    run = collecting(server, tmp_path / "run", told, 5)
    await until(lambda: server.in_flight >= 5)
    await asyncio.to_thread(server.stop)
    await told.first()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
