"""The real command with tools: functions of a module, an MCP server, a denied tool, resumed without a change."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_process import Project
from tests.support.model_server import chat_reply
from windrow.policies.models import DEFAULT_MODEL, find_model, pull

ROOT = Path(__file__).parents[3]
# A call and the answer to it; and room for two episodes, since room for eight takes a second to make.
SHORT = ("--max-turns", "2", "--set", "policy.local.parallel=2")
CALCULATOR = ROOT / "examples" / "calculator"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODULE = '''
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def delete(path: str) -> str:
    raise SystemExit("never")
'''


def reply(body: dict[str, Any], n: int) -> dict[str, Any]:
    """Three calls first, then what the tools said."""
    answers = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    whole = chat_reply(body, " ".join(answers), n)
    if not answers:
        calls = [("multiply", {"a": 6, "b": 7}), ("add", {"a": 1, "b": 2}), ("delete", {"path": "/"})]
        whole["choices"][0]["message"] = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"c{k}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(given)},
                }
                for k, (name, given) in enumerate(calls)
            ],
        }
        whole["choices"][0]["finish_reason"] = "tool_calls"
    return whole


def test_tools_are_shown_called_denied_and_recorded(in_process_project: Callable[..., Project]) -> None:
    made = in_process_project(reply)
    made.tasks([{"prompt": f"6 * 7? ({n})", "answer": "42"} for n in range(2)])
    made.module("mine", MODULE)
    (made.path / "tests").symlink_to(ROOT / "tests")
    server = f"{sys.executable} -m tests.support.mcp_server good"
    flags = ["--env", "tool", "--tool", "mine:multiply", "--tool", "mine:delete", "--mcp", server]
    flags += ["--deny-tool", "del*", "--deny-tool", "*i*g", "--allow-tool", "*", "--concurrency", "2"]
    done = made.collect(*flags)
    assert done.code == 0, done.err
    rollouts = made.rollouts()
    assert len(rollouts) == 2
    for rollout in rollouts:
        assert (rollout.status, rollout.stop) == ("completed", "answered")
        assert rollout.reply == "42 3 Error: the tool 'delete' is denied"
        assert [(c.name, c.failed) for c in rollout.turns[0].tool_calls] == [
            ("multiply", False),
            ("add", False),
            ("delete", True),
        ]
    assert made.server is not None
    shown = {tool["function"]["name"] for tool in made.server.bodies[-1]["tools"]}
    assert shown == {"multiply", "add", "pid", "fail", "die", "hang", "flood"}
    asked = made.server.completions
    again = made.collect(*flags)
    assert (again.code, made.server.completions) == (0, asked)
    other = made.collect(*flags, "--deny-tool", "flood")
    assert other.code == 2
    assert "deny_tools" in other.err


def test_a_server_that_cannot_be_started_stops_the_command_and_says_why(
    in_process_project: Callable[..., Project],
) -> None:
    made = in_process_project("done")
    made.tasks([{"prompt": "go"}])
    done = made.collect(
        "--env", "tool", "--mcp", f"{sys.executable} -c 'import sys; sys.exit(\"no licence\")'"
    )
    assert done.code != 0
    assert "does not start" in done.err
    assert "no licence" in done.err
    assert made.lines() == []


def test_the_embedded_model_reads_files_through_an_mcp_server_from_the_package_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(find_model(DEFAULT_MODEL))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    shutil.copytree(ROOT / "examples" / "files", tmp_path, dirs_exist_ok=True)
    project = Project(tmp_path)
    done = project.windrow("collect", "--config", "files.yaml", "--concurrency", "1", *SHORT, "--out", "run")
    assert done.code == 0, done.err
    rollouts = project.rollouts()
    assert {tool["name"] for rollout in rollouts for tool in rollout.tools} == {"read_file"}
    calls = [call for rollout in rollouts for turn in rollout.turns for call in turn.tool_calls]
    assert any(call.name == "read_file" and not call.failed for call in calls)


def test_the_calculator_runs_on_the_embedded_model_and_it_calls(tmp_path: Path) -> None:
    pull(find_model(DEFAULT_MODEL))
    project = Project(tmp_path)
    for file in CALCULATOR.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    done = project.windrow("collect", "--config", "calculator.yaml", "--limit", "2", *SHORT, "--out", "run")
    assert done.code == 0, done.err
    calls = [call for rollout in project.rollouts() for turn in rollout.turns for call in turn.tool_calls]
    assert any(call.name in ("add", "multiply") and not call.failed for call in calls)
