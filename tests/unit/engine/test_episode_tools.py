"""Tool calls: every call of a reply is answered, whatever becomes of it, and the ones beside it still run."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.fake_clock import LIMIT_S, for_ever
from tests.support.scripted_envs import played, returning, world
from windrow import Completion, Env, Message, Observation, Request, Score, Step, Tool
from windrow.records import Call

pytestmark = pytest.mark.slow


def tool(name: str, function: Any) -> Tool:
    return Tool(name=name, description=f"does {name}", parameters={"type": "object"}, call=function)


def calling(*calls: tuple[str, str], then: str = "done") -> Any:
    """A policy that makes these (name, arguments) calls in its first turn and says `then` after it."""

    def answer(request: Request) -> Completion | str:
        made = tuple(Call(id=f"c{n}", name=name, arguments=args) for n, (name, args) in enumerate(calls))
        return Completion(content=None, tool_calls=made) if request.turn == 0 else then

    return answering(answer)


def until_answered(*tools: Tool) -> type[Env]:
    """Ends with the first reply without calls."""

    async def step(env: Any) -> Step:
        return Step(done=not env.reply.tool_calls)

    return world([], tools=tools, step=step)


async def add(x: int, y: int) -> int:
    return x + y


def multiply(x: int, y: int) -> str:
    return str(x * y)


async def crash(**_: Any) -> None:
    raise LookupError("no such page")


async def hang(**_: Any) -> None:
    await asyncio.Event().wait()


class AsyncObject:
    async def __call__(self, x: int) -> dict[str, int]:
        return {"x": x}


ALL = [
    tool("add", add),
    tool("multiply", multiply),
    tool("crash", crash),
    tool("hang", hang),
    tool("o", AsyncObject()),
]


async def test_every_call_is_answered_and_the_valid_ones_run(tmp_path) -> None:
    calls = [
        ("add", '{"x": 1, "y": 2}'),
        ("no_such_tool", "{}"),
        ("add", '{"x": 1'),
        ("add", "[1, 2]"),
        ("crash", "{}"),
        ("add", '{"x": 1}'),
        ("hang", ""),
        ("multiply", '{"x": 3, "y": 4}'),
        ("o", '{"x": 5}'),
    ]
    rollout = await played(until_answered(*ALL), tmp_path / "run", policy=calling(*calls), tool_timeout=1)
    assert (rollout.status, rollout.reply) == ("completed", "done")
    answers = rollout.messages[2:-1]
    assert [m.tool_call_id for m in answers] == [f"c{n}" for n in range(9)]
    assert {(m.role, m.origin) for m in answers} == {("tool", "tool")}
    said = [m.text for m in answers]
    assert (said[0], said[7], said[8]) == ("3", "12", '{"x":5}')
    assert "unknown tool 'no_such_tool'; the tools are: add, multiply, crash, hang, o" in said[1]
    assert "not valid JSON" in said[2]
    assert "must be a JSON object" in said[3]
    assert "LookupError: no such page" in said[4]
    assert "TypeError" in said[5]
    assert "did not finish within 1 s" in said[6]
    made = rollout.turns[0].tool_calls
    assert [call.failed for call in made] == [False, *[True] * 6, False, False]
    assert [call.result for call in made] == list(range(2, 11))
    assert [call.arguments for call in made[:4]] == [{"x": 1, "y": 2}, {}, '{"x": 1', "[1, 2]"]
    assert all((call.error is not None) == call.failed for call in made)
    assert rollout.turns[1].tool_calls == ()


async def test_the_calls_of_a_reply_run_side_by_side_and_are_answered_in_their_order(tmp_path) -> None:
    met = asyncio.Barrier(3)

    async def meet(n: int) -> int:
        await asyncio.wait_for(met.wait(), 30)  # only together do they get past this
        await asyncio.sleep(0.01 * (3 - n))
        return n

    calls = [("meet", f'{{"n": {n}}}') for n in range(3)]
    env = until_answered(tool("meet", meet))
    rollout = await played(env, tmp_path / "run", policy=calling(*calls))
    assert [m.text for m in rollout.messages if m.role == "tool"] == ["0", "1", "2"]


async def test_the_environment_is_given_the_results(tmp_path) -> None:
    seen: list[Any] = []

    async def step(env: Any) -> Step:
        seen.append([(r.call.name, r.content, r.failed) for r in env.results])
        return Step(done=not env.reply.tool_calls)

    env = world([], tools=ALL, step=step)
    policy = calling(("add", '{"x": 1, "y": 1}'), ("crash", "{}"))
    await played(env, tmp_path / "run", policy=policy)
    assert seen == [[("add", "2", False), ("crash", "Error: LookupError: no such page", True)], []]


async def test_the_policy_is_shown_the_tools_and_the_record_keeps_their_schemas(tmp_path) -> None:
    shown: list[Any] = []

    def answer(request: Request) -> str:
        shown.append(request.tools)
        return "done"

    rollout = await played(until_answered(tool("add", add)), tmp_path / "run", policy=answer)
    schema = {"name": "add", "description": "does add", "parameters": {"type": "object"}}
    assert shown == [(schema,)]
    assert rollout.tools == (schema,)


async def test_a_call_where_there_are_no_tools_is_answered_too(tmp_path) -> None:
    rollout = await played(until_answered(), tmp_path / "run", policy=calling(("add", "{}")))
    assert [m.role for m in rollout.messages] == ["user", "assistant", "tool", "assistant"]
    assert "the tools are: none" in rollout.messages[2].text


async def test_a_tools_own_timeout_and_cancellation_are_its_own(tmp_path) -> None:
    async def impatient() -> None:
        raise TimeoutError("page load")

    async def abandoned() -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    env = until_answered(tool("impatient", impatient), tool("abandoned", abandoned), tool("add", add))
    policy = calling(("impatient", "{}"), ("abandoned", "{}"), ("add", '{"x": 1, "y": 1}'))
    rollout = await played(env, tmp_path / "run", policy=policy)
    said = [m.text for m in rollout.messages if m.role == "tool"]
    assert said == ["Error: TimeoutError: page load", "Error: CancelledError: ", "2"]
    assert rollout.status == "completed"


@pytest.mark.parametrize("at_once", [1, 2])
async def test_a_tool_that_cancels_its_own_task_is_answered_and_the_episode_goes_on(
    tmp_path, at_once: int
) -> None:
    async def give_up() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    policy = calling(*[("give_up", "{}")] * at_once)
    rollout = await played(until_answered(tool("give_up", give_up)), tmp_path / "run", policy=policy)
    assert [m.text for m in rollout.messages if m.role == "tool"] == ["Error: CancelledError: "] * at_once
    assert (rollout.status, rollout.reply) == ("completed", "done")


async def test_what_a_tool_sets_in_its_context_stays_there(tmp_path) -> None:
    seen = ContextVar("seen", default="nothing")

    async def leave_a_mark() -> str:
        before = seen.get()
        seen.set("a mark")
        return before

    def answer(request: Request) -> Completion | str:
        call = Call(id=f"c{request.turn}", name="leave_a_mark", arguments="{}")
        return Completion(content=None, tool_calls=(call,)) if request.turn < 2 else "done"

    env = until_answered(tool("leave_a_mark", leave_a_mark))
    rollout = await played(env, tmp_path / "run", policy=answering(answer))
    assert [m.text for m in rollout.messages if m.role == "tool"] == ["nothing", "nothing"]


async def test_a_tool_cannot_change_the_record_through_its_arguments(tmp_path) -> None:
    def spoil(items: list[int]) -> str:
        items.append(99)
        return "ok"

    env = until_answered(tool("spoil", spoil))
    rollout = await played(env, tmp_path / "run", policy=calling(("spoil", '{"items": [1]}')))
    assert rollout.turns[0].tool_calls[0].arguments == {"items": [1]}
    assert (rollout.messages[1].tool_calls or ())[0].arguments == '{"items": [1]}'


async def test_half_a_surrogate_pair_from_a_tool_is_replaced(tmp_path) -> None:
    def broken() -> str:
        return "\ud83d!"

    def raising() -> str:
        raise ValueError("\ud83d?")

    env = until_answered(tool("broken", broken), tool("raising", raising))
    rollout = await played(env, tmp_path / "run", policy=calling(("broken", ""), ("raising", "")))
    said = [m.text for m in rollout.messages if m.role == "tool"]
    assert said == ["\ufffd!", "Error: ValueError: \ufffd?"]
    assert rollout.turns[0].tool_calls[1].error == "ValueError: \ufffd?"
    assert rollout.metrics["repaired_strings"] >= 2


async def test_running_calls_are_cancelled_and_awaited_before_the_environment_is_closed(tmp_path) -> None:
    log: list[str] = []
    started = asyncio.Barrier(3)

    async def slow(n: int) -> None:
        try:
            await started.wait()
            await for_ever()
        finally:
            await asyncio.sleep(0.05)  # it takes a moment to let go
            log.append(f"let go {n}")

    async def quick(n: int) -> None:
        await started.wait()

    tools = [tool("slow", slow), tool("quick", quick)]
    env = world(log, tools=tools, score=returning(Score(0.0)))
    policy = calling(("slow", '{"n": 1}'), ("slow", '{"n": 2}'), ("quick", '{"n": 3}'))
    rollout = await played(env, tmp_path / "run", policy=policy, episode_timeout=LIMIT_S, tool_timeout=1e6)
    assert (rollout.status, rollout.stop) == ("truncated", "timeout")
    assert sorted(log[1:3]) == ["let go 1", "let go 2"]
    assert log[3:] == ["score", "close"]


async def test_a_prompt_can_be_rebuilt_from_what_each_turn_reads_and_no_message_is_stored_twice(
    tmp_path,
) -> None:
    sent: list[tuple[Message, ...]] = []

    def answer(request: Request) -> Completion | str:
        sent.append(request.messages)
        call = Call(id=f"c{request.turn}", name="add", arguments='{"x": 1, "y": 1}')
        return Completion(content=f"turn {request.turn}", tool_calls=(call,)) if request.turn < 3 else "end"

    class Guided(Env):
        async def reset(self, task: Any) -> Observation:
            system = {"role": "system", "content": "be brief"}
            return Observation([system, {"role": "user", "content": task["prompt"]}], ALL)

        async def step(self, reply: Message, results: list[Any]) -> Step:
            hint = {"role": "user", "content": f"after {reply.text}"}
            return Step(done=not reply.tool_calls, messages=[hint])

    rollout = await played(Guided, tmp_path / "run", policy=answer)
    rebuilt = [
        tuple(m for start, stop in turn.reads for m in rollout.messages[start:stop]) for turn in rollout.turns
    ]
    assert rebuilt == sent
    for number, turn in enumerate(rollout.turns):
        assert turn.writes is not None
        reply = rollout.messages[turn.writes]
        assert (reply.origin, reply.turn) == ("policy", number)
        for call in turn.tool_calls:
            assert rollout.messages[call.result].tool_call_id == call.id
    assert [m.text for m in rollout.messages] == [
        *("be brief", "go"),
        *(text for n in range(3) for text in (f"turn {n}", "2", f"after turn {n}")),
        *("end", "after end"),
    ]


async def test_the_problem_env_ends_with_the_reply_even_if_it_calls(tmp_path) -> None:
    await collected([{"prompt": "go"}], policy=calling(("add", "{}")), out=str(tmp_path / "run"))
    [rollout] = windrow.load(tmp_path / "run")
    assert (rollout.status, rollout.stop, len(rollout.turns)) == ("completed", "answered", 1)
