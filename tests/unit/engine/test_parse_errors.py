"""Replies whose tool calls cannot be read: told to the model, bounded, recorded on the turn, and still scored."""

from __future__ import annotations

from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.scripted_envs import played, returning, world
from windrow import Completion, Rollout, Score, Step, Tool
from windrow.records import Call


async def add(x: int, y: int) -> int:
    return x + y


ADD = Tool(name="add", description="adds", parameters={"type": "object"}, call=add)
CALL = Call(id="c", name="add", arguments='{"x": 1, "y": 2}')
BROKEN = Completion(content="<broken>", malformed=("the call is not valid JSON: <broken>",))
MIXED = Completion(content="both", tool_calls=(CALL,), malformed=("no name: {}",))
VALID = Completion(content=None, tool_calls=(CALL,))


def saying(*replies: Completion | str) -> Any:
    return answering(lambda request: replies[min(request.turn, len(replies) - 1)])


def env(log: list[str]) -> Any:
    async def step(world: Any) -> Step:
        return Step(done=not world.reply.tool_calls)

    return world(log, tools=[ADD], step=step, score=returning(Score(0.25)))


def rates(rollout: Rollout) -> tuple[float, float]:
    """Parse errors a turn, and the turns that it is a rate of."""
    return rollout.metrics["parse_errors_per_turn"], rollout.metrics["turns"]


async def test_the_model_is_told_and_the_episode_goes_on(tmp_path) -> None:
    log: list[str] = []
    rollout = await played(env(log), tmp_path / "run", policy=saying(BROKEN, VALID, "3"))
    assert (rollout.status, rollout.stop, rollout.reward) == ("completed", "env_done", 0.25)
    assert log == ["reset", "step", "step", "score", "close"]  # the environment did not see the broken reply
    told = rollout.messages[2]
    assert (told.role, told.origin) == ("user", "env")
    assert "the call is not valid JSON: <broken>" in told.text
    assert rollout.messages[1].content == "<broken>"
    assert [turn.parse_error for turn in rollout.turns] == [
        "the call is not valid JSON: <broken>",
        None,
        None,
    ]
    assert rollout.turns[1].reads == ((0, 3),)
    assert rates(rollout) == (pytest.approx(1 / 3), 3.0)


@pytest.mark.parametrize(("limit", "turns"), [(None, 3), (0, 1), (4, 5)])
async def test_too_many_in_a_row_end_the_episode_which_is_scored(
    limit: int | None, turns: int, tmp_path
) -> None:
    log: list[str] = []
    sets = [] if limit is None else [f"limits.max_parse_errors={limit}"]
    rollout = await played(env(log), tmp_path / "run", policy=saying(BROKEN), sets=sets)
    assert (rollout.status, rollout.stop) == ("completed", "parse_error")
    assert (rollout.grade, rollout.reward, rollout.error) == ("graded", 0.25, None)
    assert log == ["reset", "score", "close"]
    assert len(rollout.turns) == turns
    assert rollout.metrics["parse_errors_per_turn"] == 1.0
    assert rollout.messages[-1].content == "<broken>"  # nothing is said after the end


async def test_only_errors_in_a_row_count(tmp_path) -> None:
    replies = [BROKEN, BROKEN, VALID, BROKEN, BROKEN, VALID, "3"]
    rollout = await played(env([]), tmp_path / "run", policy=saying(*replies))
    assert (rollout.stop, rollout.reply) == ("env_done", "3")


async def test_a_valid_call_beside_a_malformed_one_runs_and_both_are_answered(tmp_path) -> None:
    rollout = await played(env([]), tmp_path / "run", policy=saying(MIXED, "3"))
    assert [(m.role, m.origin) for m in rollout.messages] == [
        ("user", "task"),
        ("assistant", "policy"),
        ("tool", "tool"),
        ("user", "env"),
        ("assistant", "policy"),
    ]
    assert rollout.messages[2].text == "3"
    assert "no name: {}" in rollout.messages[3].text
    assert rollout.turns[0].parse_error == "no name: {}"
    assert not rollout.turns[0].tool_calls[0].failed


async def test_no_error_is_a_rate_of_zero_and_without_tools_there_is_no_rate(tmp_path) -> None:
    rollout = await played(env([]), tmp_path / "run", policy=saying(VALID, "3"))
    assert rates(rollout) == (0.0, 2.0)
    plain = await played(world([]), tmp_path / "plain", policy="ok")
    assert plain.metrics == {}


async def test_a_reply_that_was_cut_is_cut_not_corrected(tmp_path) -> None:
    cut = Completion(content="<bro", malformed=("not closed",), finish="length")
    rollout = await played(env([]), tmp_path / "run", policy=saying(cut))
    assert (rollout.status, rollout.stop, len(rollout.turns)) == ("truncated", "length", 1)
    assert rollout.turns[0].parse_error == "not closed"


async def test_what_the_environment_says_of_a_reply_is_recorded_the_same_way(tmp_path) -> None:
    step = returning(Step(done=True, stop="parse_error", parse_error="no number in the answer"))
    rollout = await played(world([], step=step), tmp_path / "run", policy="hm")
    assert (rollout.status, rollout.stop) == ("completed", "parse_error")
    assert rollout.turns[0].parse_error == "no number in the answer"
    assert rates(rollout) == (1.0, 1.0)


async def test_a_limit_that_is_set_changes_the_identity(tmp_path) -> None:
    ids = {}
    for name, sets in [
        ("default", []),
        ("same", ["limits.max_parse_errors=2"]),
        ("other", ["limits.max_parse_errors=1"]),
    ]:
        options: Any = {"policy": saying("ok"), "out": str(tmp_path / name), "sets": sets}
        await collected([{"prompt": "go"}], **options)
        [rollout] = windrow.load(tmp_path / name)
        ids[name] = rollout.id
    assert ids["default"] == ids["same"] != ids["other"]


async def test_malformed_that_is_not_text_is_the_policys_fault(tmp_path) -> None:
    wrong = Completion(content="x", malformed=(1,))  # type: ignore[arg-type]
    rollout = await played(env([]), tmp_path / "run", policy=saying(wrong))
    assert rollout.status == "failed"
    assert rollout.error is not None
    assert (rollout.error.owner, rollout.error.kind) == ("policy", "bad_completion")


@pytest.mark.parametrize("arguments", ['{"x": 1, "y"', "[1, 2]", "x=1"])
async def test_a_native_call_whose_arguments_cannot_be_read_is_a_parse_error_of_its_turn(
    arguments: str, tmp_path
) -> None:
    call = Call(id="c", name="add", arguments=arguments)
    broken = Completion(content=None, tool_calls=(call,))
    rollout = await played(env([]), tmp_path / "run", policy=saying(broken, VALID, "3"))
    first, *others = [turn.parse_error for turn in rollout.turns]
    assert first == f"the arguments of 'add' are not a JSON object: {arguments}"
    assert others == [None, None]
    assert rates(rollout) == (pytest.approx(1 / 3), 3.0)
    assert rollout.turns[0].tool_calls[0].failed  # and the model was told by the call's result
    assert rollout.messages[2].role == "tool"
