"""Environments, agents, tools and scorers that block, hang, or will not be ended: they cost their own rollouts only."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.faults.conftest import ROWS
from tests.support.collect_helpers import answering, collected
from tests.support.fake_clock import LIMIT_S, for_ever, time_passes
from tests.support.scripted_envs import world
from windrow.policies.base import Completion
from windrow.records import Call
from windrow.util import guard

BLOCK_S = guard.BLOCKED_S * 1.2


async def block(env: Any) -> None:
    time.sleep(BLOCK_S)  # noqa: ASYNC251 - the fault


async def stubborn(env: Any) -> None:
    """Goes on past every limit, whatever is done to it."""
    time_passes()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass


async def run(out: Path, **options: Any) -> tuple[list[windrow.Rollout], list[str]]:
    """What is on disk afterwards, and what was warned of."""
    told: list[str] = []
    options = {"policy": answering("42"), "out": str(out), "on_warning": told.append, "retries": 0, **options}
    given = await collected(ROWS, **options)
    kept = list(windrow.load(out, attempts="all"))
    assert sorted(r.id for r in given) == sorted(r.id for r in kept)
    assert len(kept) == options.get("limit", len(ROWS))
    return kept, told


# -- what blocks the loop


@pytest.mark.parametrize("after_commit", [False, True])
async def test_an_async_scorer_that_blocks_is_named_and_moved_to_a_thread(
    tmp_path: Path, after_commit: bool
) -> None:
    ran_in: list[threading.Thread] = []

    async def sleepy(task: Any, reply: str) -> float:
        ran_in.append(threading.current_thread())
        time.sleep(BLOCK_S)  # noqa: ASYNC251 - the fault
        await asyncio.sleep(0)
        return 1.0

    sleepy.after_commit = after_commit  # type: ignore[attr-defined]
    rollouts, told = await run(tmp_path / "run", scorers=[sleepy], concurrency=1, limit=4)
    assert {rollout.reward for rollout in rollouts} == {1.0}
    assert len(told) == 1
    assert "sleepy' held up every other rollout for" in told[0]
    assert "from now on it runs in a thread" in told[0]
    mine = threading.current_thread()
    assert [thread is mine for thread in ran_in] == [True, True, False, False]


async def test_a_scorer_that_blocks_once_is_left_where_it_is(tmp_path: Path) -> None:
    """The first call of a scorer loads what it needs."""
    ran_in: list[threading.Thread] = []

    async def loads(task: Any, reply: str) -> float:
        if not ran_in:
            time.sleep(BLOCK_S)  # noqa: ASYNC251 - the fault
        ran_in.append(threading.current_thread())
        return 1.0

    _, told = await run(tmp_path / "run", scorers=[loads], concurrency=1)
    assert told == []
    assert set(ran_in) == {threading.current_thread()}


async def test_a_scorer_that_waits_as_it_should_is_not_named(tmp_path: Path) -> None:
    async def patient(task: Any, reply: str) -> float:
        await asyncio.sleep(BLOCK_S)
        return 1.0

    _, told = await run(tmp_path / "run", scorers=[patient], concurrency=3)
    assert told == []


async def test_what_a_scorer_raises_in_its_thread_fails_the_grading_alone(tmp_path: Path) -> None:
    calls: list[int] = []

    async def sleepy(task: Any, reply: str) -> float:
        calls.append(1)
        time.sleep(BLOCK_S)  # noqa: ASYNC251 - the fault
        if len(calls) > 2:
            raise ValueError("no verdict")
        return 1.0

    rollouts, _ = await run(tmp_path / "run", scorers=[sleepy], concurrency=1, limit=4)
    assert sorted(rollout.grade for rollout in rollouts) == ["failed"] * 2 + ["graded"] * 2
    assert {r.error.message for r in rollouts if r.error is not None} == {"no verdict"}


@pytest.mark.parametrize("method", ["reset", "step", "score", "close"])
async def test_an_env_that_blocks_is_named_with_its_method_once(tmp_path: Path, method: str) -> None:
    env = world([], **{method: block})
    rollouts, told = await run(tmp_path / "run", env=env, limit=3)
    assert {rollout.status for rollout in rollouts} == {"completed"}
    assert len(told) == 1
    assert f"Traced.{method}() held up every other rollout for" in told[0]
    assert "asyncio.to_thread" in told[0]


async def test_an_agent_or_a_tool_that_blocks_is_named(tmp_path: Path) -> None:
    async def agent(session: Any) -> None:
        await session.complete()
        time.sleep(BLOCK_S)  # noqa: ASYNC251 - the fault

    async def look(place: str) -> str:
        """Look at a place."""
        time.sleep(BLOCK_S)  # noqa: ASYNC251 - the fault
        return "nothing"

    call = Call(id="c", name="look", arguments='{"place": "here"}')

    def reply(request: Any) -> Completion:
        asked = request.messages[-1].role == "tool"
        return Completion(content="42", tool_calls=() if asked else (call,))

    rollouts, told = await run(
        tmp_path / "run", env="tool", tools=[look], policy=answering(reply), scorers=["contains"], limit=2
    )
    assert {rollout.reward for rollout in rollouts} == {1.0}
    assert [text.partition(" held up")[0] for text in told] == ["tool 'look'"]
    _, told = await run(tmp_path / "other", agent=agent, limit=2)
    assert len(told) == 1
    assert "agent" in told[0].partition(" held up")[0]


# -- what does not end


async def test_an_env_that_never_returns_from_reset_is_ended_by_the_episodes_time(tmp_path: Path) -> None:
    rollouts, _ = await run(tmp_path / "run", env=world([], reset=for_ever), episode_timeout=LIMIT_S)
    assert {(r.status, r.error and (r.error.owner, r.error.kind)) for r in rollouts} == {
        ("failed", ("env", "timeout"))
    }
    assert {r.error.message for r in rollouts if r.error} == {"reset() did not finish within 100 s"}


@pytest.mark.parametrize(
    ("method", "status", "stop"),
    [("reset", "failed", "error"), ("step", "truncated", "timeout")],
)
async def test_an_env_that_swallows_its_cancellation_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, status: str, stop: str
) -> None:
    monkeypatch.setattr(guard, "CANCEL_GRACE_S", 0.05)
    env = world([], **{method: stubborn})
    rollouts, _ = await run(tmp_path / "run", env=env, episode_timeout=LIMIT_S, concurrency=1, limit=2)
    assert {(r.status, r.stop) for r in rollouts} == {(status, stop)}


async def test_an_agent_that_swallows_its_cancellation_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "CANCEL_GRACE_S", 0.05)

    async def agent(session: Any) -> None:
        await session.complete()
        await stubborn(None)

    rollouts, _ = await run(tmp_path / "run", agent=agent, episode_timeout=LIMIT_S, concurrency=1, limit=2)
    assert {(r.status, r.stop) for r in rollouts} == {("truncated", "timeout")}
    assert {r.reply for r in rollouts} == {"42"}


async def test_an_agent_that_cleans_up_when_it_is_cancelled_may_do_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "CANCEL_GRACE_S", LIMIT_S)
    cleaned: list[int] = []

    async def agent(session: Any) -> None:
        try:
            await session.complete()
            await for_ever()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(1)

    rollouts, _ = await run(tmp_path / "run", agent=agent, episode_timeout=LIMIT_S, concurrency=1)
    assert {(r.status, r.stop) for r in rollouts} == {("truncated", "timeout")}
    assert len(cleaned) == len(ROWS)


async def test_code_that_has_dealt_with_a_timeout_of_its_own_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "CANCEL_GRACE_S", 0.01)

    async def look_and_go_on(env: Any) -> windrow.Step:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        await asyncio.sleep(5 * guard.CANCEL_GRACE_S)
        return windrow.Step(done=True, reward=1.0)

    rollouts, _ = await run(tmp_path / "run", env=world([], step=look_and_go_on), limit=2)
    assert [(r.status, r.reward) for r in rollouts] == [("completed", 1.0)] * 2


async def test_code_that_takes_our_cancellation_back_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "CANCEL_GRACE_S", 0.05)

    async def deny(env: Any) -> None:
        time_passes()
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                task.uncancel()

    env = world([], step=deny)
    rollouts, _ = await run(tmp_path / "run", env=env, episode_timeout=LIMIT_S, concurrency=1, limit=2)
    assert len(rollouts) == 2


async def test_a_scorer_that_swallows_its_cancellation_is_a_failed_grading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "CANCEL_GRACE_S", 0.05)

    async def judge(task: Any, reply: str) -> float:
        await stubborn(None)
        return 1.0

    rollouts, _ = await run(tmp_path / "run", scorers=[judge], score_timeout=LIMIT_S, concurrency=1, limit=2)
    assert {(r.status, r.grade, r.error and r.error.kind) for r in rollouts} == {
        ("completed", "failed", "timeout")
    }


@pytest.mark.parametrize("deed", [for_ever, stubborn])
async def test_an_env_that_never_returns_from_close_is_left_behind(tmp_path: Path, deed: Any) -> None:
    rollouts, _ = await run(
        tmp_path / "run", env=world([], close=deed), sets=["limits.close_timeout_s=0.1"], concurrency=6
    )
    assert [(r.status, r.metrics["close_failed"]) for r in rollouts] == [("completed", 1.0)] * 6


async def test_leaving_the_loop_ends_a_run_whose_agent_swallows_its_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "CANCEL_GRACE_S", 0.05)

    async def agent(session: Any) -> None:
        await session.complete()
        if session.task.key != "q0":
            await stubborn(None)

    out = tmp_path / "run"
    async for rollout in windrow.collect(ROWS, policy=answering("42"), out=str(out), agent=agent):
        assert rollout.task.key == "q0"
        break
    await run(tmp_path / "other")  # waits until the one that was left has ended
    found = [rollout.status for rollout in windrow.load(out, attempts="all")]
    assert sorted(set(found)) == ["cancelled", "completed"]
    assert len(found) == 6
