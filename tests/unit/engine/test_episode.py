"""One episode: the order of its calls, how it ends on every path, and that its environment is closed on each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected, lines
from tests.support.scripted_envs import played, raising, returning, world
from windrow import Agent, Env, Observation, Score, Step

PLACES = ["reset", "step", "score"]


async def test_reset_step_score_close_come_in_this_order(tmp_path) -> None:
    log: list[str] = []
    env = world(log, turns=3, score=returning(Score(1.0)))
    rollout = await played(env, tmp_path / "run")
    assert log == ["reset", "step", "step", "step", "score", "close"]
    assert (rollout.status, rollout.stop, rollout.reward, rollout.error) == (
        "completed",
        "env_done",
        1.0,
        None,
    )
    assert [m.origin for m in rollout.messages] == ["task", "policy", "env", "policy", "env", "policy", "env"]
    assert rollout.state == {"steps": 3}


async def test_a_step_may_say_why_the_episode_ended(tmp_path) -> None:
    env = world([], step=returning(Step(stop="parse_error", parse_error="not JSON")))
    rollout = await played(env, tmp_path / "run")
    assert (rollout.status, rollout.stop) == ("completed", "parse_error")
    assert rollout.turns[0].parse_error == "not JSON"


@pytest.mark.parametrize("place", ["reset", "step"])
async def test_a_crash_is_the_environments_failure_and_it_is_closed_once(tmp_path, place) -> None:
    log: list[str] = []
    rollout = await played(world(log, **{place: raising(LookupError("no such level"))}), tmp_path / "run")
    assert (log.count("close"), log[-1], "score" in log) == (1, "close", False)
    assert (rollout.status, rollout.stop, rollout.reward, rollout.grade) == ("failed", "error", None, "none")
    assert rollout.error is not None
    assert (rollout.error.owner, rollout.error.kind, rollout.error.retryable) == ("env", "LookupError", True)
    assert rollout.error.message == "no such level"
    assert rollout.error.phase == {"reset": "setup", "step": "env"}[place]
    assert "LookupError: no such level" in (rollout.error.traceback or "")


async def test_a_crash_in_score_leaves_the_outcome_and_is_closed_once(tmp_path) -> None:
    log: list[str] = []
    rollout = await played(world(log, score=raising(LookupError("no key"))), tmp_path / "run")
    assert log == ["reset", "step", "score", "close"]
    assert (rollout.status, rollout.stop, rollout.grade, rollout.reward) == (
        "completed",
        "env_done",
        "failed",
        None,
    )
    assert rollout.error is not None
    assert (rollout.error.owner, rollout.error.kind, rollout.error.phase) == ("env", "LookupError", "score")


async def test_a_crash_in_the_constructor_is_the_environments_failure(tmp_path) -> None:
    class Unmade(Env):
        def __init__(self, settings: Any, ctx: Any) -> None:
            raise OSError("no display")

    rollout = await played(Unmade, tmp_path / "run")
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner, rollout.error.kind) == ("failed", "env", "OSError")
    assert (rollout.messages, rollout.turns) == ((), ())


async def test_a_failed_attempt_keeps_what_had_happened(tmp_path) -> None:
    async def crash_at_two(env: Any) -> None:
        if env.steps == 2:
            raise RuntimeError("lost the game")

    rollout = await played(world([], turns=5, step=crash_at_two), tmp_path / "run")
    assert rollout.status == "failed"
    assert [m.content for m in rollout.messages] == ["go", "ok", "step 1", "ok"]
    assert [turn.writes for turn in rollout.turns] == [1, 3]
    assert rollout.turns[0].state == rollout.state == {"steps": 1}
    assert rollout.usage.completion_tokens == 2


async def test_an_env_exception_is_tried_again_within_the_call(tmp_path) -> None:
    seen: list[tuple[int, int]] = []

    async def crash_at_first(env: Any) -> None:
        seen.append((env.ctx.attempt, env.ctx.seed))
        if env.ctx.attempt == 1:
            raise RuntimeError("flaky")

    options = {"env": world([], step=crash_at_first), "policy": answering("ok"), "out": str(tmp_path / "run")}
    yielded = await collected([{"prompt": "go"}], **options)
    first, second = windrow.load(tmp_path / "run", attempts="all")
    assert {(r.id, r.attempt, r.status) for r in yielded} == {
        (first.id, 1, "failed"),
        (first.id, 2, "completed"),
    }
    assert (first.attempt, first.status, second.attempt, second.status) == (1, "failed", 2, "completed")
    assert seen == [(1, first.seed), (2, second.seed)]
    assert first.seed != second.seed
    assert await collected([{"prompt": "go"}], **options) == []


async def test_retries_within_a_call_end_and_the_next_call_tries_again(tmp_path) -> None:
    options = {
        "env": world([], step=raising(RuntimeError("always"))),
        "policy": answering("ok"),
        "out": str(tmp_path / "run"),
        "retries": 2,
    }
    assert [r.attempt for r in await collected([{"prompt": "go"}], **options)] == [1, 2, 3]
    assert [r.attempt for r in await collected([{"prompt": "go"}], **options)] == [4, 5, 6]


async def test_one_bad_sample_leaves_the_others_alone(tmp_path) -> None:
    async def crash_on_bad(env: Any) -> None:
        if env.task["prompt"] == "bad":
            raise RuntimeError("bad")

    rows = [{"prompt": name} for name in ("a", "bad", "b")]
    env = world([], step=crash_on_bad)
    rollouts = await collected(rows, env=env, policy=answering("ok"), out=str(tmp_path / "run"), retries=0)
    assert {r.task["prompt"]: r.status for r in rollouts} == {
        "a": "completed",
        "bad": "failed",
        "b": "completed",
    }


@pytest.mark.parametrize("place", [*PLACES, "policy"])
async def test_a_cancelled_episode_is_recorded_closed_once_and_run_again(tmp_path, place) -> None:
    log: list[str] = []
    arrived = asyncio.Event()

    async def hang(_: Any) -> Any:
        arrived.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cut")

    env = world(log, **{place: hang} if place != "policy" else {})
    policy = answering(hang if place == "policy" else "ok")
    options = {"env": env, "policy": policy, "out": str(tmp_path / "run")}
    consumer = asyncio.create_task(collected([{"prompt": "go"}], **options))
    await asyncio.wait_for(arrived.wait(), 30)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert log[-2:] == ["cut", "close"]
    assert log.count("close") == 1
    [first] = windrow.load(tmp_path / "run", attempts="all")
    assert (first.status, first.stop, first.reason) == ("cancelled", "cancelled", "interrupted")
    assert (first.reward, first.grade, first.error) == (None, "none", None)
    assert len(first.messages) == {"reset": 0, "policy": 1, "step": 2, "score": 3}[place]
    again = {**options, "env": world([]), "policy": answering("ok")}
    assert [r.attempt for r in await collected([{"prompt": "go"}], **again)] == [2]


async def test_a_rollout_whose_scorer_was_cancelled_is_graded_by_the_next_call_and_not_run_again(
    tmp_path,
) -> None:
    arrived = asyncio.Event()

    async def judge(task: Any, reply: str) -> float:
        if not arrived.is_set():
            arrived.set()
            await asyncio.Event().wait()
        return 0.75

    options = {"policy": answering("ok"), "scorers": [judge], "out": str(tmp_path / "run")}
    consumer = asyncio.create_task(collected([{"prompt": "go"}], **options))
    await asyncio.wait_for(arrived.wait(), 30)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    [first] = windrow.load(tmp_path / "run", attempts="all")
    assert (first.status, first.grade, first.reward) == ("completed", "pending", None)
    assert await collected([{"prompt": "go"}], **options) == []
    [graded] = windrow.load(tmp_path / "run", attempts="all")
    assert (graded.attempt, graded.grade, graded.reward) == (1, "graded", 0.75)


@pytest.mark.parametrize("place", PLACES)
async def test_a_cancellation_of_the_environments_own_making_stops_nothing_else(tmp_path, place) -> None:
    async def await_a_cancelled_task(env: Any) -> None:
        if env.task["prompt"] == "bad":
            task = asyncio.ensure_future(asyncio.sleep(60))
            task.cancel()
            await task

    rows = [{"prompt": name} for name in ("a", "bad", "b")]
    options = {"env": world([], **{place: await_a_cancelled_task}), "policy": answering("ok")}
    rollouts = await collected(rows, **options, out=str(tmp_path / "run"), retries=0, concurrency=1)
    assert [r.task["prompt"] for r in rollouts] == ["a", "bad", "b"]
    bad = rollouts[1]
    assert bad.error is not None
    assert (bad.error.owner, bad.error.phase) == ("env", {"reset": "setup", "step": "env"}.get(place, place))
    assert (bad.status, bad.grade) == (("completed", "failed") if place == "score" else ("failed", "none"))


# -- close


async def test_a_close_that_raises_changes_nothing_but_is_counted(tmp_path) -> None:
    log: list[str] = []
    env = world(log, close=raising(OSError("gone")), score=returning(Score(0.5)))
    rollout = await played(env, tmp_path / "run")
    assert (rollout.status, rollout.reward, rollout.metrics) == ("completed", 0.5, {"close_failed": 1.0})
    assert log.count("close") == 1


async def test_a_close_that_is_not_async_and_raises_is_counted_too(tmp_path) -> None:
    class Careless(world([])):  # type: ignore[misc]
        def close(self) -> None:
            raise OSError("gone")

    rollout = await played(Careless, tmp_path / "run")
    assert (rollout.status, rollout.error, rollout.metrics) == ("completed", None, {"close_failed": 1.0})


@pytest.mark.slow
@pytest.mark.parametrize("stubborn", [False, True], ids=["hangs", "ignores its cancellation"])
async def test_a_close_that_hangs_is_left_behind(tmp_path, stubborn) -> None:
    freed = asyncio.Event()

    async def hang(env: Any) -> None:
        try:
            await freed.wait()
        except asyncio.CancelledError:
            if not stubborn:
                raise
            await freed.wait()

    rollout = await played(world([], close=hang), tmp_path / "run", sets=["limits.close_timeout_s=0.1"])
    assert (rollout.status, rollout.metrics) == ("completed", {"close_failed": 1.0})
    freed.set()
    await asyncio.sleep(0)


async def test_a_close_under_way_is_finished_when_the_run_is_cancelled(tmp_path) -> None:
    arrived, finished = asyncio.Event(), []

    async def slow(env: Any) -> None:
        arrived.set()
        await asyncio.sleep(0.1)
        finished.append(True)

    env = world([], close=slow)
    run = collected([{"prompt": "go"}], env=env, policy=answering("ok"), out=str(tmp_path / "run"))
    consumer = asyncio.create_task(run)
    await asyncio.wait_for(arrived.wait(), 30)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert finished == [True]
    [rollout] = windrow.load(tmp_path / "run")
    assert (rollout.status, rollout.metrics) == ("completed", {})


# -- what an environment or an agent must not return

CARELESS: dict[str, tuple[str, Any]] = {
    "reset: a list": ("reset", [{"role": "user", "content": "x"}]),
    "reset: a role that is none": ("reset", Observation([{"role": "wizard", "content": "x"}])),
    "reset: a field that is none": ("reset", Observation([{"role": "user", "content": "x", "mood": "y"}])),
    "reset: content of a wrong type": ("reset", Observation([{"role": "user", "content": 7}])),
    "reset: a name that is a number": ("reset", Observation([{"role": "user", "content": "x", "name": 7}])),
    "reset: not a message": ("reset", Observation(["x"])),  # type: ignore[list-item]
    "step: a bool": ("step", True),
    "step: a stop that is none": ("step", Step(done=True, stop="solved")),  # type: ignore[arg-type]
    "step: a reward in words": ("step", Step(done=True, reward="high")),  # type: ignore[arg-type]
    "step: a state that is not JSON": ("step", Step(done=True, state={"seen": {1, 2}})),
    "step: a message that is none": ("step", Step(messages=[None])),  # type: ignore[list-item]
}


@pytest.mark.parametrize(("place", "value"), CARELESS.values(), ids=CARELESS)
async def test_what_cannot_be_written_down_is_the_environments_failure(tmp_path, place, value) -> None:
    log: list[str] = []
    rollout = await played(world(log, **{place: returning(value)}), tmp_path / "run")
    assert (rollout.status, rollout.stop, rollout.reward) == ("failed", "error", None)
    assert rollout.error is not None
    assert (rollout.error.owner, log.count("close")) == ("env", 1)


class Lazy(Agent):
    async def run(self, session: Any) -> None:
        return None


class Clumsy(Agent):
    async def run(self, session: Any) -> None:
        await session.complete()
        raise ZeroDivisionError("clumsy")


@pytest.mark.parametrize(("agent", "says"), [(Lazy, "before the episode had ended"), (Clumsy, "clumsy")])
async def test_an_agent_that_misbehaves_fails_the_attempt_and_the_env_is_closed(
    tmp_path, agent, says
) -> None:
    log: list[str] = []
    rollout = await played(world(log), tmp_path / "run", agent=agent)
    assert rollout.error is not None
    assert (rollout.status, log) == ("failed", ["reset", "close"])
    assert says in rollout.error.message
    assert len(lines(tmp_path / "run")) == 1
