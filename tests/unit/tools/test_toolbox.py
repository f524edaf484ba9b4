"""The run's tools in an episode: offered with the environment's, filtered, capped, able to end it, part of the identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, single
from windrow import Completion, Env, Observation, Request, Rollout, Step, ToolStop
from windrow.errors import UsageError, WindrowError
from windrow.records import Call
from windrow.tools.filters import ToolFilter


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def shout(text: str) -> str:
    return text.upper()


def submit(answer: str) -> ToolStop:
    return ToolStop(f"taken: {answer}")


def flood(chars: int) -> str:
    return "x" * chars


def complain(chars: int) -> str:
    raise ValueError("x" * chars)


def calling(*calls: tuple[str, str], then: str = "done") -> Any:
    """A policy that makes these (name, arguments) calls in its first turn and says `then` after it."""

    def answer(request: Request) -> Completion | str:
        made = tuple(Call(id=f"c{n}", name=name, arguments=args) for n, (name, args) in enumerate(calls))
        return Completion(content=None, tool_calls=made) if request.turn == 0 else then

    return answering(answer)


async def used(path: Path, policy: Any, tools: Any, **options: Any) -> Rollout:
    options = {"env": "tool", **options}
    await single([{"prompt": "go"}], policy=policy, tools=tools, out=str(path / "run"), **options)
    [rollout] = windrow.load(path / "run", attempts="all")
    return rollout


def told(rollout: Rollout) -> list[str]:
    return [m.text for m in rollout.messages if m.role == "tool"]


async def test_the_tool_env_goes_on_while_the_reply_calls_and_a_reply_without_calls_is_the_answer(
    tmp_path,
) -> None:
    policy = calling(("add", '{"a": 1, "b": 2}'), ("shout", '{"text": "hay"}'), then="it is 3")
    rollout = await used(tmp_path, policy, [add, shout])
    assert (rollout.status, rollout.stop, rollout.reply) == ("completed", "answered", "it is 3")
    assert (rollout.env, rollout.grade, rollout.reward) == ("tool", "none", None)
    assert told(rollout) == ["3", "HAY"]
    assert [tool["name"] for tool in rollout.tools] == ["add", "shout"]
    first, second = rollout.turns[0].tool_calls
    assert (first.name, first.arguments, first.failed) == ("add", {"a": 1, "b": 2}, False)
    assert rollout.messages[first.result].tool_call_id == first.id == "c0"
    assert second.seconds >= 0


async def test_the_tool_env_is_graded_by_the_scorers_that_are_named(tmp_path) -> None:
    rows = [{"prompt": "1 + 2?", "answer": "3"}]
    policy = calling(("add", '{"a": 1, "b": 2}'), then="it is 3")
    options = {"env": "tool", "tools": [add], "scorers": ["number"], "out": str(tmp_path / "run")}
    rollout = await single(rows, policy=policy, **options)
    assert (rollout.grade, rollout.reward) == ("graded", 1.0)


async def test_bad_arguments_are_told_and_recorded(tmp_path) -> None:
    rollout = await used(tmp_path, calling(("add", '{"a": "one"}')), [add])
    assert told(rollout) == ["Error: the arguments of 'add' do not fit: Expected `int`, got `str` - at `$.a`"]
    assert rollout.turns[0].tool_calls[0].failed
    assert rollout.stop == "answered"


class Shop(Env):
    async def reset(self, task: Any) -> Observation:
        async def price(item: str) -> int:
            return 7

        return Observation([{"role": "user", "content": "buy"}], [windrow.tool(price)])

    async def step(self, reply: Any, results: Any) -> Step:
        return Step(done=not reply.tool_calls)


async def test_the_environments_tools_and_the_runs_are_offered_together(tmp_path) -> None:
    policy = calling(("price", '{"item": "hay"}'), ("add", '{"a": 1, "b": 2}'))
    rollout = await used(tmp_path, policy, [add], env=Shop)
    assert [tool["name"] for tool in rollout.tools] == ["price", "add"]
    assert told(rollout) == ["7", "3"]


async def test_a_name_that_clashes_with_the_environments_fails_the_episode_and_names_both(tmp_path) -> None:
    rollout = await used(tmp_path, calling(), [windrow.tool(name="price")(add)], env=Shop)
    assert rollout.status == "failed"
    assert rollout.error is not None
    assert (rollout.error.owner, rollout.error.kind, rollout.error.retryable) == ("env", "tool_clash", False)
    said = "two tools are called 'price': one of the environment, one of the run's functions"
    assert rollout.error.message == said


async def test_two_functions_of_one_name_are_refused_before_the_run(tmp_path) -> None:
    with pytest.raises(UsageError, match="two tools are called 'add'"):
        await used(tmp_path, calling(), [add, windrow.tool(name="add")(flood)])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("allow", "deny", "permitted"),
    [
        ((), (), ["read", "read_all", "write"]),
        (("read*",), (), ["read", "read_all"]),
        ((), ("*_all",), ["read", "write"]),
        (("read*",), ("*_all",), ["read"]),
        (("READ",), (), []),
        (("rea?", "write"), ("w*",), ["read"]),
    ],
)
def test_allow_comes_first_then_deny(allow: Any, deny: Any, permitted: list[str]) -> None:
    names = ["read", "read_all", "write"]
    assert [name for name in names if ToolFilter(allow, deny).permits(name)] == permitted


async def test_a_denied_tool_is_neither_shown_nor_called_and_the_attempt_is_recorded(tmp_path) -> None:
    ran: list[str] = []

    def delete(path: str) -> str:
        ran.append(path)
        return "gone"

    calls = [("delete", '{"path": "/"}'), ("price", '{"item": "hay"}'), ("add", '{"a": 1, "b": 2}')]
    options: dict[str, Any] = {"env": Shop, "deny_tools": ["del*", "price"]}
    rollout = await used(tmp_path, calling(*calls), [add, delete], **options)
    assert [tool["name"] for tool in rollout.tools] == ["add"]
    assert ran == []
    denied = "Error: the tool 'delete' is denied"
    assert told(rollout) == [denied, "Error: the tool 'price' is denied", "3"]
    record = rollout.turns[0].tool_calls[0]
    assert (record.name, record.arguments, record.failed) == ("delete", {"path": "/"}, True)
    assert record.error == "the tool 'delete' is denied"


async def test_only_what_is_allowed_is_shown(tmp_path) -> None:
    rollout = await used(tmp_path, calling(("flood", '{"chars": 1}')), [add, flood], allow_tools=["a*"])
    assert [tool["name"] for tool in rollout.tools] == ["add"]
    assert told(rollout) == ["Error: the tool 'flood' is denied"]


async def test_a_result_that_is_too_long_is_cut_and_says_so(tmp_path) -> None:
    calls = [("flood", '{"chars": 50}'), ("flood", '{"chars": 51}'), ("complain", '{"chars": 5000000}')]
    sets = ["limits.max_tool_result_chars=50"]
    rollout = await used(tmp_path, calling(*calls), [flood, complain], sets=sets)
    whole, cut, error = told(rollout)
    assert whole == "x" * 50
    assert cut == "x" * 50 + "\n[cut: the first 50 of 51 characters]"
    assert error.startswith("Error: ValueError: xxx")
    assert len(error) < 200
    assert len(rollout.turns[0].tool_calls[2].error or "") < 200


async def test_a_result_is_cut_at_65536_characters_unless_told_otherwise(tmp_path) -> None:
    rollout = await used(tmp_path, calling(("flood", '{"chars": 1000000}')), [flood])
    assert told(rollout)[0].endswith("[cut: the first 65,536 of 1,000,000 characters]")


async def test_a_tool_ends_the_episode_after_the_environment_has_seen_its_result(tmp_path) -> None:
    seen: list[Any] = []

    class Watching(Env):
        async def reset(self, task: Any) -> Observation:
            return Observation([{"role": "user", "content": "go"}])

        async def step(self, reply: Any, results: Any) -> Step:
            seen.append([(r.content, r.stop) for r in results])
            return Step(reward=1.0)

    calls = [("submit", '{"answer": "42"}'), ("add", '{"a": 1, "b": 2}')]
    rollout = await used(tmp_path, calling(*calls), [submit, add], env=Watching)
    assert (rollout.status, rollout.stop, rollout.reward) == ("completed", "tool_stopped", 1.0)
    assert seen == [[("taken: 42", True), ("3", False)]]
    assert told(rollout) == ["taken: 42", "3"]
    assert len(rollout.turns) == 1


async def test_a_failed_call_never_ends_the_episode(tmp_path) -> None:
    rollout = await used(tmp_path, calling(("submit", "{}")), [submit])
    assert rollout.stop == "answered"


async def behaviour(path: Path, tools: Any, **options: Any) -> str:
    rollout = await used(path, answering("done"), tools, overwrite=True, **options)
    return rollout.policy.fingerprint


async def test_the_tools_and_the_filters_are_part_of_the_behaviour(tmp_path) -> None:
    found = [
        await behaviour(tmp_path, None),
        await behaviour(tmp_path, [add]),
        await behaviour(tmp_path, [add, flood]),
        await behaviour(tmp_path, [add], deny_tools=["x*"]),
        await behaviour(tmp_path, [add], allow_tools=["x*"]),
        await behaviour(tmp_path, [add], sets=["limits.max_tool_result_chars=9"]),
    ]
    assert len(set(found)) == len(found)
    assert found[0] == await behaviour(tmp_path, [])
    assert found[1] == await behaviour(tmp_path, [windrow.tool(add)])


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([{"function": "no_such_module:f"}], "tool 'no_such_module:f': cannot import"),
        ([{}], "tools[0]: give one of 'function' (module:name) and 'mcp'"),
        ([{"mcp": {}}], "tools[0].mcp: give one of 'command' and 'url'"),
        ([{"mcp": {"comand": ["x"]}}], "did you mean 'command'?"),
        ([{"funktion": "x:y"}], "did you mean 'function'?"),
        (["tests.unit.tools.test_toolbox:windrow"], "neither a function nor a windrow.Tool"),
    ],
)
async def test_a_tool_that_cannot_be_had_is_refused_before_the_run(tmp_path, tools: Any, said: str) -> None:
    with pytest.raises(WindrowError) as refused:
        await used(tmp_path, calling(), tools)
    assert said in str(refused.value)
    assert not (tmp_path / "run").exists()


async def test_tools_are_refused_where_the_first_reply_ends_the_episode(tmp_path) -> None:
    with pytest.raises(UsageError, match="--env tool"):
        await used(tmp_path, calling(), [add], env="problem")
