"""Tools of real MCP servers: over standard streams and over HTTP, good ones and bad ones.

A server that dies, hangs, floods or lies about its schemas costs one episode at most.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected, single
from tests.support.mcp_over_http import served
from tests.support.mcp_server import MANY
from windrow import Completion, Request, Rollout
from windrow.errors import ToolError
from windrow.records import Call
from windrow.tools.mcp import McpServer, McpTools

ROOT = str(Path(__file__).parents[3])

pytestmark = pytest.mark.slow


def stdio(how: str = "good") -> dict[str, Any]:
    return {"command": [sys.executable, "-m", "tests.support.mcp_server", how], "cwd": ROOT}


def tools(how: str = "good", **options: Any) -> McpTools:
    place = stdio(how)
    return McpTools(McpServer(command=tuple(place["command"]), cwd=place["cwd"]), **options)


@pytest.fixture
def http() -> Iterator[str]:
    with served("tests.support.mcp_server", "good") as url:
        yield url


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def calling(*turns: list[tuple[str, str]]) -> Any:
    """A policy that makes these (name, arguments) calls, a list a turn, and then says done."""

    def answer(request: Request) -> Completion | str:
        if request.turn >= len(turns):
            return "done"
        calls = enumerate(turns[request.turn])
        made = tuple(Call(id=f"c{request.turn}_{n}", name=name, arguments=args) for n, (name, args) in calls)
        return Completion(content=None, tool_calls=made)

    return answering(answer)


async def used(path: Path, policy: Any, *entries: Any, **options: Any) -> Rollout:
    options = {"env": "tool", "tool_timeout": 30, **options}
    await single([{"prompt": "go"}], policy=policy, tools=entries, out=str(path / "run"), **options)
    [rollout] = windrow.load(path / "run", attempts="all")
    return rollout


def told(rollout: Rollout) -> list[str]:
    return [m.text for m in rollout.messages if m.role == "tool"]


CALLS = [
    ("add", '{"a": 1, "b": 2}'),
    ("fail", "{}"),
    ("add", '{"a": "one", "b": 2}'),
    ("flood", '{"chars": 100000}'),
    ("no_such", "{}"),
]


def check_calls(rollout: Rollout) -> None:
    assert (rollout.status, rollout.stop, rollout.reply) == ("completed", "answered", "done")
    added, failed, unfit, flooded, unknown = told(rollout)
    assert added == "3"
    assert failed.startswith("Error: Error executing tool fail")
    assert "valid integer" in unfit
    assert flooded.endswith("[cut: the first 65,536 of 100,000 characters]")
    assert "unknown tool 'no_such'" in unknown
    assert [call.failed for call in rollout.turns[0].tool_calls] == [False, True, True, False, True]
    shown = {tool["name"]: tool for tool in rollout.tools}
    assert set(shown) == {"add", "pid", "fail", "die", "hang", "flood"}
    assert shown["add"]["description"] == "Add two numbers."
    assert shown["add"]["parameters"]["required"] == ["a", "b"]


async def test_the_tools_of_a_server_process_are_called_and_recorded(tmp_path) -> None:
    check_calls(await used(tmp_path, calling(CALLS), {"mcp": stdio()}))


async def test_the_tools_of_a_server_over_http_are_called_and_recorded(tmp_path, http: str) -> None:
    check_calls(await used(tmp_path, calling(CALLS), {"mcp": {"url": http}}))


async def test_a_server_that_dies_in_a_call_is_told_and_the_next_episode_has_another(tmp_path) -> None:
    turns = [[("die", "{}")], [("add", '{"a": 1, "b": 2}')]]
    rollouts = await collected(
        [{"prompt": "one"}, {"prompt": "two"}],
        env="tool",
        policy=calling(*turns),
        tools=[{"mcp": stdio(), "session": "shared"}],
        out=str(tmp_path / "run"),
        concurrency=1,
    )
    assert [r.status for r in rollouts] == ["completed", "completed"]
    assert all(
        "Connection closed" in told(r)[0] for r in rollouts
    )  # the second died of itself, not of the first


async def test_an_episode_has_a_server_of_its_own_and_it_is_gone_afterwards() -> None:
    source = tools()
    async with source.episode() as first, source.episode() as second:
        pids = [int(await next(t for t in of if t.name == "pid").call()) for of in (first, second)]
        assert pids[0] != pids[1]
    assert all(gone(pid) for pid in pids)


async def test_a_shared_server_serves_episodes_side_by_side_until_it_fails_and_then_another_does() -> None:
    source = tools(shared=True)

    async def pid(of: Any) -> int:
        return int(await next(t for t in of if t.name == "pid").call())

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(source.episode())
        second = await stack.enter_async_context(source.episode())
        before = await pid(first)
        assert await pid(second) == before
        with pytest.raises(ToolError, match="failed in 'die': Connection closed"):
            await next(t for t in first if t.name == "die").call()
        third = await stack.enter_async_context(source.episode())
        assert (after := await pid(third)) != before
        hanging = asyncio.ensure_future(next(t for t in third if t.name == "hang").call())
        await asyncio.wait({hanging}, timeout=0.2)
        hanging.cancel()
        await asyncio.wait({hanging})
        fourth = await stack.enter_async_context(source.episode())
        assert await pid(fourth) not in (before, after)  # one that hung is not trusted again
        last = await pid(fourth)
    await source.close()
    assert all(gone(process) for process in (before, after, last))


async def test_a_call_that_hangs_is_given_up_and_the_calls_beside_it_are_answered(tmp_path) -> None:
    turns = [[("hang", "{}"), ("add", '{"a": 1, "b": 2}')], [("add", '{"a": 2, "b": 2}')]]
    rollout = await used(tmp_path, calling(*turns), {"mcp": stdio()}, tool_timeout=3)
    assert told(rollout) == ["Error: the tool 'hang' did not finish within 3 s", "3", "4"]
    assert rollout.stop == "answered"


async def test_a_server_that_floods_is_cut_off_and_its_memory_is_bounded(tmp_path) -> None:
    rollout = await used(tmp_path, calling([("flood", '{"chars": 30000000}')]), {"mcp": stdio()})
    [said] = told(rollout)
    assert "failed in 'flood': Connection closed" in said
    assert len(said) < 2000
    assert rollout.stop == "answered"


async def test_a_result_that_is_not_what_the_server_declared_is_a_failed_call(tmp_path) -> None:
    rollout = await used(tmp_path, calling([("t", "{}")]), {"mcp": stdio("liar")})
    [said] = told(rollout)
    assert f"failed in 't': its answer is not what it declares: '{MANY}' is not of type 'integer'" in said
    assert rollout.turns[0].tool_calls[0].failed
    assert rollout.stop == "answered"


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("silent", "mcp_timeout", "did not give its tools within 0.5 s"),
        ("babbling", "mcp_start", "does not start"),
        ("broken", "mcp_start", "the licence has expired"),
        ("no_schema", "mcp_schema", "lists the tool 't' with a schema that is none"),
        ("no_object", "mcp_start", "input_value='string'"),
    ],
)
async def test_a_server_that_is_wrong_from_the_start_says_what_is_wrong(
    how: str, kind: str, said: str
) -> None:
    patience = 0.5 if how == "silent" else 60.0
    with pytest.raises(ToolError) as refused:
        async with tools(how, start_timeout_s=patience).episode():
            raise AssertionError
    assert said in str(refused.value)
    assert (refused.value.kind, refused.value.owner, refused.value.retryable) == (kind, "tool", True)


async def test_a_command_that_is_not_there_stops_the_run_before_its_first_episode(tmp_path) -> None:
    with pytest.raises(ToolError, match=r"no-such-server.*does not start"):
        await used(tmp_path, calling(), {"mcp": {"command": ["/no-such-server"]}})
    assert list(windrow.load(tmp_path / "run")) == []


async def test_a_server_that_fails_later_costs_the_episode_that_meets_it(tmp_path) -> None:
    """The first start is the run's own look at it, the second the first episode's; that one fails."""
    marks = tmp_path / "starts"
    script = (
        "import os, sys; n = os.path.getsize(sys.argv[1])\n"
        "open(sys.argv[1], 'a').write('x')\n"
        "sys.exit('no memory') if n == 1 else None\n"
        "from tests.support.mcp_server import good; good().run()\n"
    )
    marks.write_text("")
    entry = {"mcp": {"command": [sys.executable, "-c", script, str(marks)], "cwd": ROOT}}
    await collected(
        [{"prompt": f"{n}"} for n in range(2)],
        env="tool",
        policy=calling([("add", '{"a": 1, "b": 2}')]),
        tools=[entry],
        out=str(tmp_path / "run"),
        concurrency=1,
        retries=1,
    )
    failed, *good = windrow.load(tmp_path / "run", attempts="all")
    assert failed.status == "failed"
    assert failed.error is not None
    assert (failed.error.owner, failed.error.kind, failed.error.retryable) == ("tool", "mcp_start", True)
    assert "no memory" in failed.error.message
    assert [(r.status, told(r)) for r in good] == [("completed", ["3"])] * 2


def test_a_server_is_named_by_what_it_is_and_not_by_where_it_lies() -> None:
    def identity(**fields: Any) -> Any:
        return McpServer(**fields).identity()

    assert identity(command=("/a/python", "/b/s.py")) == identity(command=("/c/python", "/d/s.py"))
    assert identity(command=("python", "s.py")) != identity(command=("python", "t.py"))
    assert identity(url="http://h:80/mcp") == identity(url="http://h:81/mcp")
    assert identity(url="http://h/mcp", name="files") == identity(command=("x",), name="files")
