"""A user's own loop: a function that is given a session. What it does is recorded as the chat agent's doings are."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import windrow
from tests.support.collect_helpers import answering, collected, single
from tests.support.scripted_envs import played, returning, world
from windrow import Completion, Request, Score, Step, Tool
from windrow.agents import find_agent
from windrow.errors import UsageError
from windrow.records import Call
from windrow.store.reader import RunReader

ADD = Tool(name="add", description="", parameters={"type": "object"}, call=lambda x, y: x + y)


def echo(request: Request) -> str:
    return f"turn {request.turn}"


class Watched:
    """A policy that remembers what it was sent, as text."""

    def __init__(self, answer: Any = echo) -> None:
        self.sent: list[list[tuple[str, str]]] = []
        self._answer = answer

    def __call__(self, request: Request) -> Any:
        self.sent.append([(m.role, m.text) for m in request.messages])
        return self._answer(request)


def rebuilt(rollout: windrow.Rollout) -> list[list[tuple[str, str]]]:
    return [
        [(m.role, m.text) for start, stop in turn.reads for m in rollout.messages[start:stop]]
        for turn in rollout.turns
    ]


async def chatting(session: Any) -> None:
    while not session.ended:
        reply = await session.complete()
        if reply is not None and not session.ended:
            await session.step(reply)


async def test_a_function_that_does_as_the_chat_agent_does_leaves_the_same_record(tmp_path) -> None:
    found = []
    for name, agent in (("own", chatting), ("chat", "chat")):
        env = world([], turns=3, score=returning(Score(1.0)))
        rollout = await played(env, tmp_path / name, policy=echo, agent=agent)
        found.append((rollout.messages, [t.reads for t in rollout.turns], rollout.state, rollout.reward))
    assert found[0] == found[1]
    assert len(found[0][0]) == 7


async def test_it_is_named_by_its_module_and_its_name(tmp_path) -> None:
    rollout = await played(world([]), tmp_path / "run", agent=chatting)
    assert rollout.agent == "tests.unit.agents.test_function_agent:chatting"
    assert find_agent(rollout.agent).version is None


# -- what it asks with


async def test_a_sliding_window_is_recorded_as_the_ranges_that_were_sent(tmp_path) -> None:
    policy = Watched()

    async def windowed(session: Any) -> None:
        while not session.ended:
            reply = await session.complete([session.messages[0], *session.messages[1:][-2:]])
            if reply is not None:
                await session.step(reply)

    rollout = await played(world([], turns=4), tmp_path / "run", policy=policy, agent=windowed)
    assert [turn.reads for turn in rollout.turns] == [
        ((0, 1),),
        ((0, 3),),
        ((0, 1), (3, 5)),
        ((0, 1), (5, 7)),
    ]
    assert rebuilt(rollout) == policy.sent
    assert len(rollout.messages) == 1 + 4 * 2


async def test_a_history_of_dicts_is_known_again_and_nothing_is_stored_twice(tmp_path) -> None:
    policy = Watched(lambda request: "ok")  # equal replies: known again by their place

    async def keeping(session: Any) -> None:
        history: list[Any] = [{"role": "system", "content": "be brief"}]
        history += [{"role": m.role, "content": m.text} for m in session.messages]
        for _ in range(3):
            reply = await session.complete(history)
            history += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "go on"}]

    rollout = await played(world([]), tmp_path / "run", policy=policy, agent=keeping)
    assert rebuilt(rollout) == policy.sent
    assert [m.text for m in rollout.messages] == [
        *("go", "be brief", "ok", "go on", "ok", "go on", "ok", "step 1")
    ]
    assert [turn.reads for turn in rollout.turns] == [
        ((1, 2), (0, 1)),
        ((1, 2), (0, 1), (2, 4)),
        ((1, 2), (0, 1), (2, 6)),
    ]


async def test_what_is_changed_in_a_message_afterwards_is_another_message(tmp_path) -> None:
    parts = [{"type": "text", "text": "look"}]
    policy = Watched()

    async def spoiling(session: Any) -> None:
        session.add([{"role": "user", "content": parts}])
        await session.complete()
        parts[0]["text"] = "spoilt"
        session.messages[1].content[0]["text"] = "spoilt"
        await session.complete([{"role": "user", "content": parts}])

    rollout = await played(world([]), tmp_path / "run", policy=policy, agent=spoiling)
    assert policy.sent == [[("user", "go"), ("user", "look")], [("user", "spoilt")]]
    assert rebuilt(rollout) == policy.sent


async def test_the_same_new_message_twice_in_one_prompt_is_sent_twice_and_stored_once(tmp_path) -> None:
    policy = Watched()

    async def stutter(session: Any) -> None:
        await session.complete([{"role": "user", "content": "hello"}] * 2)

    rollout = await played(world([]), tmp_path / "run", policy=policy, agent=stutter)
    assert policy.sent == [[("user", "hello")] * 2] == rebuilt(rollout)
    assert [m.text for m in rollout.messages] == ["go", "hello", "turn 0", "step 1"]


# -- tools


def asking(*calls: Call) -> Any:
    return lambda request: Completion(content=None, tool_calls=calls) if request.turn == 0 else "done"


async def test_a_call_of_the_reply_that_the_agent_ran_is_answered_and_not_run_again(tmp_path) -> None:
    ran: list[int] = []
    tool = Tool(name="note", description="", parameters={"type": "object"}, call=lambda n: ran.append(n) or n)
    calls = [Call(id=f"c{n}", name="note", arguments=f'{{"n": {n}}}') for n in (1, 2)]
    seen: list[Any] = []

    async def step(env: Any) -> None:
        seen.append([result.content for result in env.results])

    async def picking(session: Any) -> None:
        reply = await session.complete()
        assert (await session.call_tool("note", {"n": 2})).content == "2"
        await session.step(reply)

    env = world([], tools=[tool], step=step)
    rollout = await played(env, tmp_path / "run", policy=asking(*calls), agent=picking)
    assert (sorted(ran), seen) == ([1, 2], [["1", "2"]])
    answers = [(m.tool_call_id, m.text) for m in rollout.messages if m.role == "tool"]
    assert answers == [("c2", "2"), ("c1", "1")]
    for call in rollout.turns[0].tool_calls:
        assert rollout.messages[call.result].tool_call_id == call.id


async def test_a_call_of_its_own_is_recorded_on_the_turn_and_told_by_a_user_message(tmp_path) -> None:
    async def reading(session: Any) -> None:
        await session.complete()
        result = await session.call_tool("add", {"x": 1, "y": 2})
        assert (result.content, result.failed) == ("3", False)
        assert (await session.call_tool("sub", "[]")).failed
        await session.complete()

    rollout = await played(world([], tools=[ADD]), tmp_path / "run", policy=echo, agent=reading)
    first, second = rollout.turns
    assert [(c.name, c.failed) for c in first.tool_calls] == [("add", False), ("sub", True)]
    assert first.tool_calls[0].arguments == {"x": 1, "y": 2}
    told = [rollout.messages[call.result] for call in first.tool_calls]
    assert [(m.role, m.origin, m.tool_call_id) for m in told] == [("user", "tool", None)] * 2
    assert second.reads == ((0, 4),)


async def test_the_limit_on_tool_calls_holds_for_the_agents_own(tmp_path) -> None:
    async def greedy(session: Any) -> None:
        await session.complete()
        while not session.ended:
            result = await session.call_tool("add", {"x": 1, "y": 1})
        assert result.failed

    rollout = await played(
        world([], tools=[ADD]), tmp_path / "run", policy=echo, agent=greedy, max_tool_calls=2
    )
    assert (rollout.status, rollout.stop) == ("truncated", "max_tool_calls")
    assert len(rollout.turns[0].tool_calls) == 2


# -- how it ends


async def test_the_best_of_several_replies_may_be_stepped_and_the_record_stands_on_its_turn(tmp_path) -> None:
    async def best(session: Any) -> None:
        first = session.messages
        replies = [await session.complete(first) for _ in range(3)]
        await session.step(replies[1])

    env = world([], step=returning(Step(done=True, reward=0.5)))
    rollout = await played(env, tmp_path / "run", policy=echo, agent=best)
    assert [turn.reads for turn in rollout.turns] == [((0, 1),)] * 3
    assert [turn.reward for turn in rollout.turns] == [None, 0.5, None]
    assert (rollout.stop, rollout.reward) == ("env_done", 0.5)


async def test_an_agent_may_ask_several_times_at_once_within_the_limit(tmp_path) -> None:
    async def slowly(request: Request) -> str:
        await asyncio.sleep(0.01 * (3 - request.turn))
        return f"reply {request.turn}"

    got: list[Any] = []

    async def sampling(session: Any) -> None:
        got.extend(await asyncio.gather(*(session.complete() for _ in range(5))))

    rollout = await played(world([]), tmp_path / "run", policy=slowly, agent=sampling, max_turns=3)
    assert (rollout.status, rollout.stop, len(rollout.turns)) == ("truncated", "max_turns", 3)
    assert [reply and reply.text for reply in got] == ["reply 0", "reply 1", "reply 2", None, None]
    for number, turn in enumerate(rollout.turns):
        assert (turn.reads, rollout.messages[turn.writes or 0].turn) == (((0, 1),), number)


@pytest.mark.parametrize("says", ["twice", "as it was returned"])
async def test_what_cannot_be_stepped_is_told_to_the_agent(tmp_path, says) -> None:
    async def careless(session: Any) -> None:
        reply = await session.complete()
        if says == "twice":
            await session.step(reply)
            await session.step(reply)
        await session.step(msgspec.structs.replace(reply, content="better"))

    rollout = await played(world([], turns=3), tmp_path / "run", policy=echo, agent=careless)
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner) == ("failed", "env")
    assert says in rollout.error.message


async def test_returning_is_answering_and_the_environment_sees_the_reply(tmp_path) -> None:
    async def once(session: Any) -> None:
        await session.complete()

    log: list[str] = []
    env = world(log, turns=9, step=returning(Step(reward=0.5)), score=returning(Score(1.0)))
    rollout = await played(env, tmp_path / "run", policy=echo, agent=once)
    assert (rollout.status, rollout.stop, rollout.reward) == ("completed", "answered", 1.5)
    assert log == ["reset", "step", "score", "close"]


async def test_a_reply_that_was_stepped_is_not_stepped_again_on_return(tmp_path) -> None:
    async def twice(session: Any) -> None:
        for _ in range(2):
            await session.step(await session.complete())

    log: list[str] = []
    rollout = await played(world(log, turns=9), tmp_path / "run", policy=echo, agent=twice)
    assert (rollout.status, rollout.stop, log.count("step")) == ("completed", "answered", 2)


async def test_the_environments_own_end_counts_before_the_return(tmp_path) -> None:
    async def once(session: Any) -> None:
        await session.complete()

    rollout = await played(world([], turns=1), tmp_path / "run", policy=echo, agent=once)
    assert (rollout.status, rollout.stop) == ("completed", "env_done")


async def test_the_limits_end_the_loop_of_a_function_too(tmp_path) -> None:
    async def endless(session: Any) -> None:
        while not session.ended:
            await session.complete([{"role": "user", "content": "again"}])

    rollout = await played(world([]), tmp_path / "run", policy=echo, agent=endless, max_turns=3)
    assert (rollout.status, rollout.stop, len(rollout.turns)) == ("truncated", "max_turns", 3)


async def test_a_window_does_not_escape_the_limit_on_tokens(tmp_path) -> None:
    async def forgetful(session: Any) -> None:
        while not session.ended:
            await session.complete(session.messages[:1])

    rollout = await played(world([]), tmp_path / "run", policy=echo, agent=forgetful, max_episode_tokens=9)
    assert (rollout.status, rollout.stop) == ("truncated", "max_episode_tokens")
    assert len(rollout.turns) == 5  # two words each


@pytest.mark.parametrize("messages", [[], [{"role": "nobody", "content": "?"}], [{"content": "?"}]])
async def test_asking_with_what_are_no_messages_fails_the_attempt(tmp_path, messages) -> None:
    async def careless(session: Any) -> None:
        await session.complete(messages)

    rollout = await played(world([]), tmp_path / "run", agent=careless)
    assert (rollout.status, rollout.turns) == ("failed", ())


async def test_a_tool_before_the_first_turn_is_refused(tmp_path) -> None:
    async def early(session: Any) -> None:
        await session.call_tool("add", {})

    rollout = await played(world([]), tmp_path / "run", agent=early)
    assert rollout.error is not None
    assert "before the first complete()" in rollout.error.message


async def test_the_problem_env_takes_the_answer_of_a_function(tmp_path) -> None:
    async def thinking(session: Any) -> None:
        await session.complete([*session.messages, {"role": "user", "content": "Think first."}])
        await session.complete()

    rows = [{"prompt": "2 + 2?", "answer": "4"}]
    policy = answering(lambda request: "hm" if request.turn == 0 else "4")
    rollout = await single(rows, policy=policy, agent=thinking, out=str(tmp_path / "run"))
    assert (rollout.status, rollout.stop, rollout.reward, len(rollout.turns)) == (
        "completed",
        "answered",
        1,
        2,
    )


# -- how it is named, and what is refused


def plain(session: Any) -> None: ...


async def two(session: Any, other: Any) -> None: ...


async def versioned(session: Any) -> None:
    await session.complete()


versioned.version = 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "says"), [("plain", "async def"), ("two", "one argument"), ("echo", "async")]
)
def test_a_function_that_is_no_agent_is_refused_with_what_to_write(name, says) -> None:
    with pytest.raises(UsageError, match=says):
        find_agent(f"tests.unit.agents.test_function_agent:{name}")


async def test_settings_that_a_function_would_ignore_are_refused(tmp_path) -> None:
    sets = ["agent.name=tests.unit.agents.test_function_agent:versioned", "agent.settings.depth=2"]
    with pytest.raises(UsageError, match="takes no settings"):
        await collected([{"prompt": "go"}], policy=answering("ok"), sets=sets, out=str(tmp_path / "run"))


async def test_a_version_changes_the_ids_and_a_source_without_one_is_watched(tmp_path) -> None:
    assert find_agent("tests.unit.agents.test_function_agent:versioned").version == 7
    for name, agent in (("a", versioned), ("b", chatting)):
        await collected([{"prompt": "go"}], policy=answering("ok"), agent=agent, out=str(tmp_path / name))
    codes = [RunReader(tmp_path / name).manifest.code for name in "ab"]
    assert [list(code) for code in codes] == [[], ["agent tests.unit.agents.test_function_agent:chatting"]]
