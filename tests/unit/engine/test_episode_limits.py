"""Limits end an episode before the call that would exceed them; what a limit ended is truncated, and scored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.collect_helpers import answering
from tests.support.fake_clock import LIMIT_S, for_ever
from tests.support.scripted_envs import played, returning, world
from windrow import Completion, Request, Score, Step, Tool
from windrow.records import Call, Usage

pytestmark = pytest.mark.slow


def spending(prompt: int, completion: int, seen: list[Any] | None = None, **fields: Any) -> Any:
    """A policy that reports this usage: each turn's prompt holds everything before it."""

    def answer(request: Request) -> Completion:
        if seen is not None:
            seen.append(request.sampling.get("max_tokens"))
        before = request.turn * (prompt + completion)
        usage = Usage(prompt_tokens=before + prompt, completion_tokens=completion)
        return Completion(**{"content": "ok", "usage": usage, **fields})

    return answering(answer)


async def test_max_turns_truncates_and_what_there_is_is_scored(tmp_path) -> None:
    log: list[str] = []
    env = world(log, turns=9, score=returning(Score(0.25)))
    rollout = await played(env, tmp_path / "run", max_turns=3)
    assert (rollout.status, rollout.stop, rollout.grade, rollout.reward) == (
        "truncated",
        "max_turns",
        "graded",
        0.25,
    )
    assert len(rollout.turns) == 3
    assert log == ["reset", "step", "step", "step", "score", "close"]
    assert rollout.messages[-1].content == "step 3"


async def test_the_last_turn_may_still_end_the_episode(tmp_path) -> None:
    rollout = await played(world([], turns=3), tmp_path / "run", max_turns=3)
    assert (rollout.status, rollout.stop) == ("completed", "env_done")


async def test_max_episode_tokens_ends_the_episode_and_caps_each_call_before(tmp_path) -> None:
    seen: list[Any] = []
    policy = spending(10, 5, seen)
    rollout = await played(world([], turns=9), tmp_path / "run", policy=policy, max_episode_tokens=40)
    assert (rollout.status, rollout.stop, len(rollout.turns)) == ("truncated", "max_episode_tokens", 3)
    assert seen == [40, 25, 10]
    assert [turn.sampling for turn in rollout.turns] == [{"max_tokens": n} for n in seen]


async def test_max_tokens_stands_where_it_is_smaller_than_what_is_left(tmp_path) -> None:
    seen: list[Any] = []
    options = {"policy": spending(10, 5, seen), "max_episode_tokens": 40, "max_tokens": 20}
    rollout = await played(world([], turns=9), tmp_path / "run", **options)
    assert seen == [20, 20, 10]
    assert [turn.sampling for turn in rollout.turns] == [None, None, {"max_tokens": 10}]


@pytest.mark.parametrize(
    ("used", "asked", "stop"),
    [(30, None, "max_episode_tokens"), (12, None, "length"), (20, 20, "length")],
    ids=["the episode's budget was spent", "the server's own cap", "max_tokens"],
)
async def test_a_length_stop_says_whose_limit_it_was(tmp_path, used, asked, stop) -> None:
    policy = spending(10, used, finish="length")
    options = {"policy": policy, "max_episode_tokens": 30, "max_tokens": asked}
    rollout = await played(world([], turns=9), tmp_path / "run", **options)
    assert (rollout.status, rollout.stop) == ("truncated", stop)


async def test_a_budget_cannot_be_kept_without_usage_and_that_is_said(tmp_path) -> None:
    policy = answering(lambda request: Completion(content="ok", usage=None))
    rollout = await played(world([], turns=9), tmp_path / "run", policy=policy, max_episode_tokens=40)
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner, rollout.error.kind) == ("failed", "policy", "no_usage")


async def test_a_reply_cut_off_by_length_is_truncated_and_scored_and_not_stepped(tmp_path) -> None:
    log: list[str] = []
    policy = answering(lambda request: Completion(content="half an", finish="length"))
    rollout = await played(world(log, score=returning(Score(0.0))), tmp_path / "run", policy=policy)
    assert (rollout.status, rollout.stop, rollout.grade, rollout.reward) == (
        "truncated",
        "length",
        "graded",
        0.0,
    )
    assert rollout.reply == "half an"
    assert log == ["reset", "score", "close"]


async def test_a_context_overflow_later_on_keeps_the_turns_before(tmp_path) -> None:
    from windrow.errors import ContextOverflow

    def answer(request: Request) -> str:
        if request.turn == 2:
            raise ContextOverflow("too long")
        return "ok"

    env = world([], turns=9, score=returning(Score(0.5)))
    rollout = await played(env, tmp_path / "run", policy=answer)
    assert (rollout.status, rollout.stop, rollout.reward, rollout.error) == (
        "truncated",
        "context_overflow",
        0.5,
        None,
    )
    assert [turn.writes for turn in rollout.turns] == [1, 3, None]


async def test_max_tool_calls_ends_the_episode_before_the_calls_that_exceed_it(tmp_path) -> None:
    ran: list[int] = []

    def answer(request: Request) -> Completion:
        calls = tuple(Call(id=f"c{n}", name="count", arguments=f'{{"n": {n}}}') for n in range(2))
        return Completion(content=None, tool_calls=calls)

    async def count(n: int) -> str:
        ran.append(n)
        return "ok"

    tool = Tool(name="count", description="", parameters={}, call=count)
    env = world([], turns=9, tools=[tool], score=returning(Score(1.0)))
    rollout = await played(env, tmp_path / "run", policy=answer, max_tool_calls=5)
    assert (rollout.status, rollout.stop, rollout.reward) == ("truncated", "max_tool_calls", 1.0)
    assert ran == [0, 1, 0, 1]
    assert [len(turn.tool_calls) for turn in rollout.turns] == [2, 2, 0]


# -- seconds


async def test_the_episodes_time_truncates_it_and_what_there_is_is_scored(tmp_path) -> None:
    async def hang_at_two(env: Any) -> None:
        if env.steps == 2:
            await for_ever()

    log: list[str] = []
    env = world(log, turns=9, step=hang_at_two, score=returning(Score(0.5)))
    rollout = await played(env, tmp_path / "run", episode_timeout=LIMIT_S)
    assert (rollout.status, rollout.stop, rollout.reward, rollout.error) == (
        "truncated",
        "timeout",
        0.5,
        None,
    )
    assert log == ["reset", "step", "step", "score", "close"]
    assert [m.content for m in rollout.messages] == ["go", "ok", "step 1", "ok"]


async def test_the_episodes_time_may_run_out_in_a_model_call(tmp_path) -> None:
    env = world([], score=returning(Score(0.0)))
    rollout = await played(env, tmp_path / "run", policy=for_ever, episode_timeout=LIMIT_S)
    assert (rollout.status, rollout.stop, rollout.reward) == ("truncated", "timeout", 0.0)
    assert [(turn.writes, turn.finish) for turn in rollout.turns] == [(None, None)], (
        "the cut call is recorded"
    )
    assert [m.content for m in rollout.messages] == ["go"]


async def test_a_reset_that_takes_all_the_time_is_the_environments_failure(tmp_path) -> None:
    log: list[str] = []
    rollout = await played(world(log, reset=for_ever), tmp_path / "run", episode_timeout=LIMIT_S)
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner, rollout.error.kind) == ("failed", "env", "timeout")
    assert (rollout.error.retryable, log) == (True, ["reset", "close"])


async def test_a_call_that_takes_too_long_is_infrastructures_failure(tmp_path) -> None:
    rollout = await played(world([]), tmp_path / "run", policy=for_ever, call_timeout=LIMIT_S)
    assert rollout.error is not None
    assert (rollout.status, rollout.stop, rollout.reward) == ("failed", "error", None)
    assert (rollout.error.owner, rollout.error.kind, rollout.error.phase) == (
        "infra",
        "call_timeout",
        "policy",
    )


async def test_a_timeout_of_the_environments_own_is_not_the_episodes(tmp_path) -> None:
    async def impatient(env: Any) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    rollout = await played(world([], step=impatient), tmp_path / "run", episode_timeout=LIMIT_S)
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner, rollout.error.kind) == ("failed", "env", "timeout")


async def test_a_timeout_of_the_policys_own_is_not_the_call_timeout(tmp_path) -> None:
    async def impatient(request: Request) -> str:
        raise TimeoutError("queue full")

    rollout = await played(world([]), tmp_path / "run", policy=impatient)
    assert rollout.error is not None
    assert (rollout.error.owner, rollout.error.kind, rollout.error.message) == (
        "policy",
        "timeout",
        "queue full",
    )


async def test_a_score_that_takes_too_long_is_the_environments_and_the_outcome_stands(tmp_path) -> None:
    rollout = await played(world([], score=for_ever), tmp_path / "run", score_timeout=LIMIT_S)
    assert rollout.error is not None
    assert (rollout.status, rollout.stop, rollout.grade, rollout.reward) == (
        "completed",
        "env_done",
        "failed",
        None,
    )
    assert (rollout.error.owner, rollout.error.kind) == ("env", "timeout")


async def test_a_step_after_the_end_is_not_asked_for(tmp_path) -> None:
    log: list[str] = []
    env = world(log, step=returning(Step(done=True, messages=[{"role": "user", "content": "bye"}])))
    rollout = await played(env, tmp_path / "run", max_turns=5)
    assert (log, len(rollout.turns)) == (["reset", "step", "score", "close"], 1)
    assert rollout.messages[-1].content == "bye"
