"""`--to sft`: what a policy read and said, as the chat rows of two worlds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering
from tests.support.exact_token_policy import make_turn
from tests.support.export_helpers import exported, said
from tests.support.run_builders import write_run
from tests.support.scripted_envs import played, world
from windrow import Completion, Observation, Request, Tool
from windrow.records import Call, Message

ADD = Tool(
    name="add",
    description="Adds.",
    parameters={"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}},
    call=lambda x, y: x + y,
)
SCHEMA = {"name": "add", "description": "Adds.", "parameters": ADD.parameters}


def adding(request: Request) -> Completion:
    """Calls `add`, thinking, then says what it gave."""
    if request.messages[-1].role != "tool":
        return Completion(
            content=None,
            reasoning="a sum",
            tool_calls=(Call(id="c1", name="add", arguments='{"x": 1, "y":2}'),),
        )
    return Completion(content=request.messages[-1].text)


async def with_tools(run: Path, **options: Any) -> windrow.Rollout:
    async def reset(env: Any) -> Observation:
        few_shot = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
        return Observation([{"role": "developer", "content": "Be brief."}, *few_shot], (ADD,))

    env = world([], turns=2, reset=reset)
    return await played(env, run, policy=answering(adding), **options)


async def test_the_form_hf_has_calls_as_objects_and_tools_as_text(tmp_path: Path) -> None:
    rollout = await with_tools(tmp_path / "run")
    [row] = exported(tmp_path / "run", "sft")
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"x": 1, "y": 2}}}
    assert row["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "assistant", "content": "", "reasoning_content": "a sum", "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
        {"role": "user", "content": "step 1"},
        {"role": "assistant", "content": "", "reasoning_content": "a sum", "tool_calls": [call]},
    ], "what came after the last reply is no part of it"
    assert json.loads(row.pop("tools")) == [{"type": "function", "function": SCHEMA}]
    del row["messages"]
    assert row == {
        "rollout_id": rollout.id,
        "segment": 0,
        "group": rollout.group,
        "sample": 0,
        "task": rollout.task.key,
        "model": rollout.policy.model,
        "status": "completed",
        "reward": None,
    }


async def test_the_form_openai_has_calls_as_text_and_nothing_that_openai_refuses(tmp_path: Path) -> None:
    await with_tools(tmp_path / "run")
    [row] = exported(tmp_path / "run", "sft", form="openai")
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1, "y":2}'}}
    assert row == {
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello", "weight": 0},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "3", "tool_call_id": "c1"},
            {"role": "user", "content": "step 1"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ],
        "tools": [{"type": "function", "function": SCHEMA}],
    }


def test_reasoning_that_the_form_openai_has_no_place_for_is_counted(tmp_path: Path) -> None:
    thought = said(
        "a",
        messages=(
            Message(role="user", content="a", origin="task"),
            Message(role="assistant", content="b", origin="policy", turn=0, reasoning="why"),
        ),
    )
    run = write_run(tmp_path / "run", [thought, said("b", index=1)])
    report = windrow.export(run, to="sft", out=tmp_path / "out.jsonl", form="openai")
    [(note, count)] = report.notes.items()
    assert (count, "reasoning" in note) == (1, True)
    assert windrow.export(run, to="sft", out=tmp_path / "hf.jsonl").notes == {}


@pytest.mark.parametrize("form", ["hf", "openai"])
def test_a_reply_of_nothing_is_an_empty_text(tmp_path: Path, form: str) -> None:
    rollout = said("a")
    messages = (rollout.messages[0], Message(role="assistant", content=None, origin="policy", turn=0))
    run = write_run(tmp_path / "run", [said("a", messages=messages)])
    [row] = exported(run, "sft", form=form)
    assert row["messages"][-1] == {"role": "assistant", "content": ""}
    assert not row.get("tools")


@pytest.mark.parametrize("arguments", ["{x: 1", "[1]", '"x"'])
def test_arguments_that_are_no_object_stay_the_policys_own_text(tmp_path: Path, arguments: str) -> None:
    rollout = said("a")
    calls = (Call(id="c", name="add", arguments=arguments),)
    reply = Message(role="assistant", content=None, origin="policy", turn=0, tool_calls=calls)
    run = write_run(tmp_path / "run", [said("a", messages=(rollout.messages[0], reply))])
    [row] = exported(run, "sft")
    assert row["messages"][-1]["tool_calls"][0]["function"]["arguments"] == arguments


async def test_windows_over_the_messages_are_conversations_of_their_own(tmp_path: Path) -> None:
    async def windowed(session: Any) -> None:
        for _ in range(2):
            reply = await session.complete()
            await session.step(reply)
        await session.complete(session.messages[-1:])

    policy = answering(lambda request: f"reply {request.turn}")
    await played(world([], turns=3), tmp_path / "run", policy=policy, agent=windowed)
    rows = exported(tmp_path / "run", "sft")
    assert [[message["content"] for message in row["messages"]] for row in rows] == [
        ["go", "reply 0", "step 1", "reply 1"],
        ["step 2", "reply 2"],
    ]
    assert [row["segment"] for row in rows] == [0, 1]


def test_a_reply_that_two_conversations_share_is_trained_in_the_first(tmp_path: Path) -> None:
    texts = ("q", "a", "left", "l", "right", "r")
    messages = tuple(
        Message(role="assistant" if text in "alr" else "user", content=text, origin="policy")
        for text in texts
    )
    turns = (
        make_turn(None, reads=((0, 1),), writes=1),
        make_turn(None, reads=((0, 3),), writes=3),
        make_turn(None, role="discarded", reads=((0, 3),), writes=5),
        make_turn(None, reads=((0, 2), (4, 5)), writes=5),
        make_turn(None, reads=((0, 6),), writes=None),
    )
    run = write_run(tmp_path / "run", [said("a", messages=messages, turns=turns)])
    rows = exported(run, "sft", form="openai")
    weights = [[(m["content"], m.get("weight", 1)) for m in row["messages"]] for row in rows]
    assert weights == [
        [("q", 1), ("a", 1), ("left", 1), ("l", 1)],
        [("q", 1), ("a", 0), ("right", 1), ("r", 1)],
    ]


def test_what_no_chat_row_can_hold_is_left_out_and_counted(tmp_path: Path) -> None:
    image = Message(role="user", content=[{"type": "image", "blob": "ab/cd"}], origin="task")
    seen = said("b", index=1, messages=(image, said("b").messages[1]))
    run = write_run(tmp_path / "run", [said("a"), seen, said("c", index=2, messages=(), turns=())])
    report = windrow.export(run, to="sft", out=tmp_path / "out.jsonl")
    assert report.left_out == {"images that stand in blobs/": 1, "the policy said nothing": 1}
    assert report.rows == 1


@pytest.mark.parametrize(
    "turn", [{"reads": ((0, 10**15),)}, {"reads": ((-1, 1),)}, {"writes": 2}, {"writes": -1}], ids=str
)
def test_a_turn_that_names_messages_which_are_not_there_is_left_out_as_invalid(
    tmp_path: Path, turn: dict[str, Any]
) -> None:
    broken = said("a", turns=(make_turn(None, **{"reads": ((0, 1),), "writes": 1, **turn}),))
    run = write_run(tmp_path / "run", [broken, said("b", index=1)])
    report = windrow.export(run, to="sft", out=tmp_path / "out.jsonl")
    assert report.invalid == {"rollouts with a turn that names messages which are not there": 1}
    assert report.rows == 1
