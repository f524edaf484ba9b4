"""The real hud-python: its types take our rows and our records, its reward lookup agrees with ours, and its own server is driven."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import hud
import msgspec
import pytest
from hud.agents.base import MCPAgent
from hud.agents.base import find_reward as their_reward
from hud.eval.task import Task
from hud.shared.exceptions import HudConfigError
from hud.types import AgentType, InferenceResult, LegacyTask, MCPToolResult, Trace, TraceStep
from mcp.types import TextContent

from tests.support.export_helpers import exported, said
from tests.support.hud_rows import V5, v4
from tests.support.run_builders import write_run
from windrow.errors import ScorerError
from windrow.integrations.hud.rewards import find_reward
from windrow.integrations.hud.rows import generation_of, key_of, split_row
from windrow.integrations.hud.tasks import read_task
from windrow.tools.mcp_session import McpAnswer

pytestmark = pytest.mark.filterwarnings("ignore")  # of its own names

ROOT = Path(__file__).parents[2]

CALLS: list[Any] = [
    {"name": "a", "arguments": {"x": 1}},
    {"name": "a", "arguments": {"name": "b", "arguments": {"x": 1}}},
    {"a": {"name": "b", "arguments": {"x": 1}}},
    {"a": {"b": {"c": {"x": 1}}}},
    {"a": {"b": {"c": {"d": {}}}}},
    {"name": "a"},
    [{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"y": [1, 2]}}],
    '{"name": "a", "arguments": {"x": 1}}',
]


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_row_of_the_first_generation_is_read_as_they_read_it(call: Any) -> None:
    agent = {"system_prompt": "Be brief.", "allowed_tools": ["a*"], "disallowed_tools": ["ab"]}
    row = v4(None, {"url": "http://h/mcp"}, id="t", setup_tool=call, evaluate_tool=call, agent_config=agent)
    theirs, ours = LegacyTask(**row), read_task(row)
    found = theirs.setup_tool if isinstance(theirs.setup_tool, list) else [theirs.setup_tool]
    assert [(c.name, c.arguments or {}) for c in found if c] == [(c.name, c.arguments) for c in ours.setup]
    assert ours.evaluate == ours.setup
    assert theirs.agent_config is not None
    assert theirs.agent_config.system_prompt == ours.system_prompt
    assert theirs.agent_config.allowed_tools == list(ours.allowed or ())
    assert theirs.agent_config.disallowed_tools == list(ours.disallowed)
    assert (theirs.prompt, theirs.id, theirs.mcp_config) == (ours.prompt, key_of(row), ours.servers)


@pytest.mark.parametrize(
    "wrong", [{"agent_config": {"allowed": []}}, {"setup_tool": {"name": 5}}, {"mcp_config": "{"}]
)
def test_what_they_refuse_in_a_row_is_refused(wrong: dict[str, Any]) -> None:
    row = {**v4(), **wrong}
    with pytest.raises((ValueError, HudConfigError)):
        LegacyTask(**row)
    with pytest.raises(ValueError):
        split_row(row)


def test_a_row_of_the_second_generation_is_theirs_and_comes_back_as_it_was() -> None:
    task = Task(**V5)
    assert (task.scenario, task.args, task.slug) == (V5["scenario"], V5["args"], V5["slug"])
    assert generation_of(V5) == "v5"
    kept, _ = split_row(V5)
    assert kept == V5
    written = json.loads(json.dumps(task.model_dump(mode="json", exclude_none=True)))
    assert generation_of(written) == "v5"
    split_row(written)
    assert key_of(written) == key_of(V5)


ANSWERS: list[tuple[list[str], Any]] = [
    ([], {"reward": 0.5}),
    ([], {"grade": 0.25, "score": 0.75}),
    ([], {"score": 1, "content": "good"}),
    ([], {"subscores": {"a": 1.0, "b": 0.5, "c": 9.0}, "weights": {"a": 0.5, "b": 0.5}}),
    (["well done", '{"grade": 0.125}'], None),
    (['{"score": 0.5, "reward": 1.0}'], {"verdict": "fine"}),
    (['{"score": 0.5}'], {"reward": 0.0}),
]


@pytest.mark.parametrize(("texts", "structured"), ANSWERS, ids=str)
def test_a_reward_is_found_where_they_find_it(texts: list[str], structured: Any) -> None:
    blocks = [TextContent(type="text", text=text) for text in texts]
    theirs = their_reward(MCPToolResult(content=blocks, structuredContent=structured, isError=False))
    assert find_reward(McpAnswer(texts=tuple(texts), structured=structured), "evaluate").reward == theirs


@pytest.mark.parametrize(
    "structured", [None, {"verdict": "fine"}, {"subscores": {"a": "x"}, "weights": {"a": 1}}]
)
def test_where_they_make_up_a_zero_the_grading_fails(structured: Any) -> None:
    blocks = [TextContent(type="text", text="well done")]
    assert their_reward(MCPToolResult(content=blocks, structuredContent=structured, isError=False)) == 0.0
    with pytest.raises(ScorerError):
        find_reward(McpAnswer(texts=("well done",), structured=structured), "evaluate")


def test_an_exported_line_is_a_trace_of_theirs_and_its_steps_are_theirs(tmp_path: Path) -> None:
    played = msgspec.structs.replace(said("a").task, data=v4("log", {"url": "http://h/mcp"}, id="t"))
    [row] = exported(write_run(tmp_path / "run", [said("a", reward=0.5, task=played)]), "hud")
    trace = Trace.model_validate({**row, "isError": row["is_error"]})
    assert isinstance(trace.task, LegacyTask)
    assert (trace.task.prompt, trace.task.id) == ("Go on.", "t")
    assert (trace.reward, trace.done, trace.content, trace.isError) == (0.5, True, "a!", False)
    [step] = [TraceStep.model_validate(step) for step in row["trace"]]
    assert step.category == "agent"
    assert step.start_timestamp == row["trace"][0]["start_timestamp"]


COUNTER = {"command": sys.executable, "args": [str(Path(__file__).with_name("hudcounter.py"))]}
NUMBER = {"name": "setup", "arguments": {"start": 3}}, {"name": "add", "arguments": {"by": 4}}


class Listening(MCPAgent):
    """An agent of theirs that keeps its first prompt, and answers at once."""

    prompts: list[str]

    async def get_system_messages(self) -> list[Any]:
        return []

    async def format_message(self, message: Any) -> list[Any]:
        self.prompts = [*getattr(self, "prompts", ()), message]
        return [message]

    async def format_blocks(self, blocks: list[Any]) -> list[Any]:
        return blocks

    async def format_tool_results(self, tool_calls: Any, tool_results: Any) -> list[Any]:
        return []

    async def get_response(self, messages: list[Any]) -> InferenceResult:
        return InferenceResult(content="done", done=True)

    @classmethod
    def agent_type(cls) -> AgentType:
        return AgentType.OPENAI_COMPATIBLE


async def their_prompt(row: dict[str, Any]) -> str:
    agent = Listening()
    async with hud.eval(Task.from_v4(row), trace=False, quiet=True) as context:
        await agent.run(context, max_steps=1)
    [prompt] = agent.prompts
    return prompt


def collected_here(row: dict[str, Any], folder: Path, *replies: dict[str, Any], flags: Any = ()) -> Any:
    """The rollout of a row by the command of .venv: its MCP client and theirs do not live in one environment."""
    (folder / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "script.json").write_text(json.dumps({"replies": [*replies, {"reply": "done"}]}))
    command = [str(ROOT / ".venv" / "bin" / "python"), "-m", "windrow", "collect", "tasks.jsonl"]
    command += ["--out", "run", "--model", "scripted:script.json", "--tool-calls", "hermes", "--json"]
    # Much is imported there.
    command += ["--trust-rows", "--env", "hud", "--set", "env.settings.start_timeout_s=200", *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[0])


@pytest.mark.parametrize(
    "agent", [{}, {"append_setup_output": True}, {"append_setup_output": False, "append_setup_tool": True}]
)
def test_the_prompt_is_the_one_that_they_send(agent: dict[str, Any], tmp_path: Path) -> None:
    row = {
        "prompt": "Count to seven.",
        "mcp_config": {"counter": COUNTER},
        "setup_tool": list(NUMBER),
        "evaluate_tool": {"name": "evaluate", "arguments": {"target": 7}},
        **({"agent_config": agent} if agent else {}),
    }
    theirs = asyncio.run(their_prompt(row))
    assert theirs == ("Count to seven.\n\nThe counter is at 3.\n7" if agent else "Count to seven.")
    rollout = collected_here(row, tmp_path)
    assert (rollout["messages"][0]["content"], rollout["reward"]) == (theirs, 1.0)


def test_their_own_server_is_driven_by_the_command(tmp_path: Path) -> None:
    row = {
        "prompt": "Count to seven.",
        "mcp_config": {"counter": COUNTER},
        "setup_tool": {"name": "setup", "arguments": {"start": 3}},
        "evaluate_tool": {"name": "evaluate", "arguments": {"target": 7}},
        "agent_config": {"disallowed_tools": ["setup", "evaluate"]},
    }
    call = '<tool_call>{"name": "add", "arguments": {"by": 4}}</tool_call>'
    rollout = collected_here(row, tmp_path, {"match": "Count", "reply": call})
    assert (rollout["reward"], rollout["env"], rollout["stop"]) == (1.0, "hud", "answered")
    assert [tool["name"] for tool in rollout["tools"]] == ["add"]


def test_a_scenario_of_their_own_server_is_played(tmp_path: Path) -> None:
    server = {**COUNTER, "args": [str(Path(__file__).with_name("hudscenario.py"))]}
    row = {
        "env": {"name": "counter", "exclude": ["reset"]},
        "scenario": "count",
        "args": {"start": 3, "target": 7, "words": ["done", "over"]},
        "mcp_config": {"counter": server},
    }
    Task(**{key: value for key, value in row.items() if key != "mcp_config"})
    call = '<tool_call>{"name": "add", "arguments": {"by": 4}}</tool_call>'
    rollout = collected_here(row, tmp_path, {"match": "Count", "reply": call})
    assert rollout["messages"][0]["content"] == "Count from 3 to 7; then say done."
    assert [tool["name"] for tool in rollout["tools"]] == ["add"]
    assert (rollout["reward"], rollout["grade"], rollout["stop"]) == (1.0, "graded", "answered")
