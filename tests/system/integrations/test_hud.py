"""Tasks of HUD's first generation, played for real: MCP servers over standard streams and over HTTP, and the command's flags."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import collected
from tests.support.command_process import Project
from tests.support.hud_rows import STDIO, v4
from tests.support.mcp_over_http import served
from tests.system.tools.test_mcp_tools import calling, told
from windrow import Rollout

pytestmark = pytest.mark.slow

KEY = "sk-hud-0123456789"
SETUP = {"name": "setup", "arguments": {"scene": "a hall"}}
CALLS = [
    ("act", '{"what": "look"}'),
    ("cheat", "{}"),
    ("given", '{"variable": "WORLD_KEY"}'),
    ("given", '{"header": "X-Api-Key"}'),
    ("given", '{"header": "X-Image"}'),
]


@pytest.fixture(scope="module")
def http() -> Iterator[str]:
    with served("tests.support.hud_server") as url:
        yield url


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUD_TEST_KEY", KEY)
    monkeypatch.delenv("HUD_TEST_IMAGE", raising=False)


async def by_key(rows: list[dict[str, Any]], run: Path, **options: Any) -> dict[str, Rollout]:
    """The rollouts of these rows, as they stand on disk."""
    policy = options.pop("policy", calling(CALLS))
    await collected(rows, policy=policy, out=str(run), **{"retries": 0, "trust_rows": True, **options})
    return {rollout.task.key: rollout for rollout in windrow.load(run, attempts="all")}


async def test_a_task_is_set_up_played_and_judged_by_a_server_process(tmp_path, key) -> None:
    server = {**STDIO, "env": {"WORLD_KEY": "${HUD_TEST_KEY}"}}
    agent = {"system_prompt": "Play.", "disallowed_tools": ["ch*", "setup"], "response_tool_name": "respond"}
    agent |= {"append_setup_output": True}
    row = v4("log", server, id="a", setup_tool=SETUP, agent_config=agent)
    rollout = (await by_key([row], tmp_path / "run"))["a"]
    assert (rollout.env, rollout.status, rollout.stop, rollout.grade) == (
        "hud",
        "completed",
        "answered",
        "graded",
    )
    assert [m.text for m in rollout.messages[:2]] == ["Play.", "Go on.\n\nYou see a hall."]
    looked, cheated, shown, *_ = told(rollout)
    assert (looked, cheated) == ("you look", "Error: the tool 'cheat' is denied")
    assert shown == "[redacted]"  # the server has the key, and no file has it
    assert {tool["name"] for tool in rollout.tools} == {"act", "look", "respond", "given", "evaluate"}
    [score] = rollout.scores.values()
    assert score.evidence == [{"tool": "evaluate", "said": "['setup a hall', 'look', 'answer done']"}]
    assert rollout.reward == 3.0  # a deed a point: setup, look, answer; what is denied is not done
    assert rollout.task.data == row
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and KEY in path.read_text()]


async def test_a_task_is_played_over_http_with_headers_and_its_verdict_is_found_or_its_grading_fails(
    tmp_path, key, http: str
) -> None:
    server = {
        "url": http,
        "headers": {"X-Api-Key": "${HUD_TEST_KEY}", "X-Image": "${HUD_TEST_IMAGE:world:1}"},
    }
    hows = ("subscores", "text", "broken", "words", "word")
    rows = [v4(how, server, id=how) for how in hows]
    rows.append(v4(None, server, id="unjudged"))
    rows.append(v4("log", server, id="nobody", evaluate_tool={"name": "nobody", "arguments": {}}))
    rows.append(v4("log", server, id="stuck", setup_tool={"name": "setup", "arguments": {"scene": "broken"}}))
    rows.append(v4("text", server, id="none", agent_config={"allowed_tools": []}))
    found = await by_key(rows, tmp_path / "run")
    rewards = {name: rollout.reward for name, rollout in found.items() if rollout.grade == "graded"}
    assert rewards == {"subscores": 0.75, "text": 0.25, "none": 0.25}
    assert {name: found["subscores"].metrics[f"subscore/{name}"] for name in "abc"} == {
        "a": 1,
        "b": 0.5,
        "c": 9,
    }
    failed = {name: r.error.kind for name, r in found.items() if r.grade == "failed" and r.error is not None}
    assert failed == {
        "broken": "evaluate_failed",
        "words": "no_reward",
        "word": "bad_reward",
        "nobody": "no_such_tool",
    }
    assert all(found[name].status == "completed" and found[name].reward is None for name in failed)
    assert (found["unjudged"].grade, found["unjudged"].reward) == ("none", None)
    stuck = found["stuck"]
    assert (stuck.status, stuck.error and stuck.error.kind) == ("failed", "setup_failed")
    assert told(found["text"])[3:] == ["[redacted]", "world:1"]
    assert found["none"].tools == ()
    assert told(found["none"])[0] == "Error: the tool 'act' is denied"


async def test_the_tools_of_several_servers_are_told_apart_by_the_servers_names(tmp_path, http: str) -> None:
    row = v4(None, id="two", mcp_config={"red": {"url": http}, "blue": {"url": http}})
    row["agent_config"] = {"allowed_tools": ["red_a*", "blue_*"], "disallowed_tools": ["*_cheat"]}
    row["setup_tool"] = {"name": "blue_setup", "arguments": {"scene": "a hall"}}
    row["evaluate_tool"] = {"name": "red_evaluate", "arguments": {"how": "text"}}
    calls = [("red_act", '{"what": "look"}'), ("red_given", "{}")]
    rollout = (await by_key([row], tmp_path / "run", policy=calling(calls)))["two"]
    assert told(rollout) == ["you look", "Error: the tool 'red_given' is denied"]
    names = {tool["name"] for tool in rollout.tools}
    assert names == {
        "red_act",
        "blue_setup",
        "blue_act",
        "blue_look",
        "blue_respond",
        "blue_given",
        "blue_evaluate",
    }
    assert rollout.reward == 0.25


async def test_a_server_that_is_not_there_fails_the_attempt_and_says_which_and_not_where(
    tmp_path, key
) -> None:
    row = v4("log", {"url": "http://127.0.0.1:9/${HUD_TEST_KEY}/mcp"}, id="a")
    rollout = (await by_key([row], tmp_path / "run"))["a"]
    assert (rollout.status, rollout.reward) == ("failed", None)
    assert rollout.error is not None
    assert "the MCP server 'world' does not start" in rollout.error.message
    assert KEY not in rollout.error.message


def test_every_flag_reaches_a_task_of_hud(project: Callable[..., Project], http: str) -> None:
    """The model, the sampling, the limits and the filters of `collect`, in two processes beside it."""

    def reply(body: dict[str, Any], n: int) -> dict[str, Any]:
        names = [tool["function"]["name"] for tool in body["tools"]]
        call = {"id": f"c{n}", "type": "function", "function": {"name": "act", "arguments": '{"what": "on"}'}}
        message = {"role": "assistant", "content": json.dumps(names), "tool_calls": [call]}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}

    own = project(reply)
    own.tasks([v4("text", {"url": http}, id="a", agent_config={"disallowed_tools": ["cheat"]})])
    flags = "--trust-rows --max-turns 2 --temperature 0.3 --top-p 0.9 --max-tokens 77 --group-size 2 --workers 2 --seeds sample"
    done = own.collect(
        *flags.split(), "--allow-tool", "[ac]*", "--allow-tool", "given", "--deny-tool", "giv*"
    )
    assert done.code == 0, done.err
    rollouts = own.rollouts()
    assert [(r.stop, r.status, r.reward, len(r.turns)) for r in rollouts] == [
        ("max_turns", "truncated", 0.25, 2)
    ] * 2
    assert own.server is not None
    bodies = own.server.bodies
    assert {(b["model"], b["temperature"], b["top_p"]) for b in bodies} == {("stub", 0.3, 0.9)}
    assert all(77 in (b.get("max_tokens"), b.get("max_completion_tokens")) for b in bodies)
    assert sorted(b["seed"] for b in bodies) == [0, 0, 1, 1]
    assert {tuple(t["function"]["name"] for t in b["tools"]) for b in bodies} == {("act",)}
    assert {r.policy.model for r in rollouts} == {"stub"}
