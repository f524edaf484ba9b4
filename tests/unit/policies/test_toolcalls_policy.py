"""A policy whose tool calls are text: what the model is sent, and what is recorded of its reply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.collect_helpers import answering
from tests.support.scripted_envs import played
from windrow import Completion, Env, Observation, Request, Step, Tool
from windrow.policies import Policy
from windrow.policies.toolcalls import FORMATS
from windrow.policies.toolcalls.examples import examples
from windrow.policies.toolcalls.policy import TextToolPolicy, with_tool_calls
from windrow.records import Call, Message

FORMS = ["hermes", "llama", "xml", "react", "fenced"]
CALLS = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"x": 1, "y": 2}}\n</tool_call>',
    "llama": '{"name": "add", "parameters": {"x": 1, "y": 2}}',
    "xml": "<function=add><parameter=x>1</parameter><parameter=y>2</parameter></function>",
    "react": 'Action: add\nAction Input: {"x": 1, "y": 2}',
    "fenced": '```tool_call\n{"name": "add", "arguments": {"x": 1, "y": 2}}\n```',
}


async def add(x: int, y: int) -> int:
    return x + y


ADD = Tool(name="add", description="adds", parameters={"type": "object"}, call=add)


def until_answered(messages: list[Any] | None = None, tools: Any = (ADD,)) -> type[Env]:
    class Asking(Env):
        version = 1

        async def reset(self, task: Any) -> Observation:
            return Observation(messages or [{"role": "user", "content": "1 + 2?"}], tools)

        async def step(self, reply: Message, results: list[Any]) -> Step:
            return Step(done=not reply.tool_calls)

    return Asking


def writing(sent: list[Request], *replies: str) -> Any:
    def answer(request: Request) -> str:
        sent.append(request)
        return replies[min(request.turn, len(replies) - 1)]

    return answering(answer)


@pytest.mark.parametrize("form", FORMS)
async def test_a_call_written_as_text_is_run_and_its_result_shown_as_text(form: str, tmp_path) -> None:
    sent: list[Request] = []
    said = f"  Let me see.\n{CALLS[form]}\n"
    rollout = await played(
        until_answered(), tmp_path / "run", policy=writing(sent, said, "3"), tool_calls=form
    )
    assert (rollout.status, rollout.stop) == ("completed", "env_done")
    reply = rollout.messages[1]
    assert reply.content == said  # exactly as it was sampled
    assert [(call.name, call.id) for call in reply.tool_calls or ()] == [("add", "call_0_0")]
    assert [(m.role, m.text, m.tool_call_id) for m in rollout.messages[2:3]] == [("tool", "3", "call_0_0")]
    assert rollout.turns[0].tool_calls[0].arguments == {"x": 1, "y": 2}
    assert [request.tools for request in sent] == [(), ()]
    assert [m.role for m in sent[1].messages] == ["system", "user", "assistant", "user"]
    assert "adds" in sent[0].messages[0].text
    assert sent[1].messages[2].content == said
    assert sent[1].messages[2].tool_calls is None
    assert "3" in sent[1].messages[3].text
    assert [m.role for m in rollout.messages] == ["user", "assistant", "tool", "assistant"]  # as ever
    assert rollout.tools == (ADD.schema(),)


async def test_calls_that_the_task_gives_in_the_usual_form_are_shown_as_text(tmp_path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"x": 4, "y": 5}'}}
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "4 + 5?"},
        {"role": "assistant", "content": "I add.", "tool_calls": [call, {**call, "id": "d"}]},
        {"role": "tool", "content": "9", "tool_call_id": "c"},
        {"role": "tool", "content": "nine", "tool_call_id": "d"},
        {"role": "user", "content": "1 + 2?"},
    ]
    sent: list[Request] = []
    await played(until_answered(history), tmp_path / "run", policy=writing(sent, "3"), tool_calls="hermes")
    system, *rest = sent[0].messages
    assert system.text.startswith("Be brief.\n\n# Tools")
    block = '<tool_call>\n{"name": "add", "arguments": {"x": 4, "y": 5}}\n</tool_call>'
    assert [(m.role, m.content) for m in rest] == [
        ("user", "4 + 5?"),
        ("assistant", f"I add.\n{block}\n{block}"),
        ("user", "<tool_response>\n9\n</tool_response>\n<tool_response>\nnine\n</tool_response>"),
        ("user", "1 + 2?"),
    ]


async def test_without_tools_nothing_is_added_and_nothing_is_read(tmp_path) -> None:
    sent: list[Request] = []
    env = until_answered(tools=())
    rollout = await played(env, tmp_path / "run", policy=writing(sent, CALLS["hermes"]), tool_calls="hermes")
    assert [m.role for m in sent[0].messages] == ["user"]
    assert rollout.messages[1].tool_calls is None


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (f"<think>{CALLS['hermes']}</think>It is 3.", 0),
        (f"<think>{CALLS['hermes']}", 0),
        (f"<think>I add.</think>{CALLS['hermes']}", 1),
        (f"I add.</think>{CALLS['hermes']}", 1),  # the template opened the thought
    ],
)
async def test_a_call_that_is_only_thought_of_is_none(text: str, count: int) -> None:
    policy = TextToolPolicy(answering(text), "hermes")
    assert len((await policy.complete(request())).tool_calls) == count


async def test_calls_that_the_server_read_itself_are_kept() -> None:
    native = Completion(content=CALLS["hermes"], tool_calls=(Call(id="a", name="add", arguments="{}"),))
    policy = TextToolPolicy(answering(lambda request: native), "hermes")
    assert await policy.complete(request()) == native


def test_the_format_is_part_of_the_identity_only_when_it_was_asked_for() -> None:
    policy = answering("ok")
    asked = with_tool_calls(policy, "hermes").identity()
    assert asked["tool_calls"] == {"format": "hermes", "version": 1}
    assert with_tool_calls(policy, "auto") is policy
    assert with_tool_calls(policy, "native") is policy
    named = Named()
    chosen = with_tool_calls(named, "auto")
    assert isinstance(chosen, TextToolPolicy)
    assert chosen.identity() == named.identity()
    assert with_tool_calls(named, "native") is named


class Named(Policy):
    name = "chat"
    model = "Qwen/Qwen2.5-7B-Instruct"


class Small(Policy):
    """Called as the embedded model is; keeps what it was sent."""

    model = "local:SmolLM2-135M-Instruct.Q4_1"

    def __init__(self) -> None:
        self.sent: list[Request] = []

    async def complete(self, request: Request) -> Completion:
        self.sent.append(request)
        return Completion(content="ok")


async def test_a_small_model_is_shown_examples_unless_the_task_has_its_own(tmp_path) -> None:
    small = Small()
    await played(until_answered(), tmp_path / "run", policy=small)
    shown = small.sent[0].messages
    assert [m.role for m in shown] == ["system", *["user", "assistant"] * 3, "user"]
    assert {m.text for m in shown[2:-1:2]} == {'<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'}
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    taught = [
        {"role": "user", "content": "4 + 5?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "9", "tool_call_id": "c"},
        {"role": "user", "content": "1 + 2?"},
    ]
    await played(until_answered(taught), tmp_path / "taught", policy=small)
    assert [m.role for m in small.sent[1].messages] == ["system", "user", "assistant", "user", "user"]


def test_examples_are_of_the_right_types_and_read_as_calls() -> None:
    properties = {
        "n": {"type": "integer"},
        "s": {"type": "string"},
        "b": {"type": "boolean"},
        "e": {"enum": ["up", "down"]},
        "l": {"type": "array"},
        "left_out": {"type": "string"},
    }
    schema = {"type": "object", "properties": properties, "required": ["n", "s", "b", "e", "l"]}
    tools: Any = [{"name": "f", "parameters": schema}, {"name": "g", "parameters": {"type": "object"}}]
    for form in FORMS:
        turns = list(examples(tools, FORMATS[form]))
        calls = [call for m in turns[1::2] for call in FORMATS[form].parse(m.text, tools).calls]
        assert [call.name for call in calls] == ["f", "g", "f"]
        assert json.loads(calls[0].arguments) == {"n": 5, "s": "river", "b": True, "e": "down", "l": []}
        assert turns[0].text == 'Call f with n = 5 and s = "river" and b = true and e = "down" and l = [].'
        assert turns[2].text == "Call g."


def request() -> Request:
    return Request(
        messages=(Message(role="user", content="1 + 2?", origin="task"),),
        tools=(ADD.schema(),),
        sampling={},
        id="r",
        attempt=1,
        turn=0,
    )
