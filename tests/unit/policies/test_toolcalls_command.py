"""Text tool calls through the real command: what goes over the wire, and what stands in the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.command_process import Project
from tests.support.model_server import ModelServer

ENV = """
from windrow import Env, Observation, Score, Step, Tool

async def add(x: int, y: int) -> int:
    return x + y

PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}}
ADD = Tool(name="add", description="Add two numbers.", parameters=PARAMETERS, call=add)

class Sums(Env):
    version = 1

    async def reset(self, task):
        return Observation([{"role": "user", "content": task["prompt"]}], [ADD])

    async def step(self, reply, results):
        return Step(done=not reply.tool_calls)

    async def score(self, episode):
        return Score(float(any(m.role == "tool" and m.text == "3" for m in episode.messages)))
"""
OK = '<tool_call>\n{"name": "add", "arguments": {"x": 1, "y": 2}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "add", "arguments": {"x": 1, "y": 2}\n</tool_call>'


def reply(body: dict[str, Any], n: int) -> str:
    """By the task's prompt, and by how much has been said since."""
    task = next(m["content"] for m in body["messages"] if m["role"] == "user")
    turn = sum(m["role"] == "assistant" for m in body["messages"])
    return {
        "valid": [OK, "3"],
        "beside": [f"Both:\n{BROKEN}\n{OK}", "3"],
        "corrected": [BROKEN, OK, "3"],
        "hopeless": [BROKEN] * 9,
        "list": ['<tool_call>{"name": "add", "arguments": [1, 2]}</tool_call>', OK, "3"],
    }[task][turn]


@pytest.fixture
def project(tmp_path: Path, stub: Any) -> Project:
    server: ModelServer = stub(reply)
    project = Project(tmp_path, server)
    project.module("sums", ENV)
    project.tasks(
        {"id": name, "prompt": name} for name in ("valid", "beside", "corrected", "hopeless", "list")
    )
    return project


@pytest.mark.slow
def test_text_calls_run_malformed_ones_are_told_and_every_end_is_scored(project: Project) -> None:
    done = project.collect("--env", "sums:Sums", "--tool-calls", "hermes")
    assert done.code == 0, done.err
    found = {rollout.task.key: rollout for rollout in project.rollouts()}
    assert {key: (r.status, r.stop, r.reward, len(r.turns)) for key, r in found.items()} == {
        "valid": ("completed", "env_done", 1.0, 2),
        "beside": ("completed", "env_done", 1.0, 2),
        "corrected": ("completed", "env_done", 1.0, 3),
        "hopeless": ("completed", "parse_error", 0.0, 3),
        "list": ("completed", "env_done", 1.0, 3),
    }
    assert {key: r.metrics["parse_errors_per_turn"] for key, r in found.items()} == {
        "valid": 0.0,
        "beside": 0.5,
        "corrected": pytest.approx(1 / 3),
        "hopeless": 1.0,
        "list": pytest.approx(1 / 3),
    }
    beside = found["beside"]
    assert [m.role for m in beside.messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert beside.messages[1].content == f"Both:\n{BROKEN}\n{OK}"
    assert [call.name for call in beside.messages[1].tool_calls or ()] == ["add"]
    assert "not valid JSON" in (beside.turns[0].parse_error or "")
    assert "not a JSON object" in found["list"].messages[2].text
    assert found["list"].turns[0].tool_calls == ()


@pytest.mark.slow
def test_the_server_is_sent_text_only(project: Project) -> None:
    project.tasks([{"prompt": "valid"}])
    done = project.collect("--env", "sums:Sums", "--tool-calls", "hermes")
    assert done.code == 0, done.err
    assert project.server is not None
    first, second = project.server.bodies
    assert "tools" not in first
    assert "Add two numbers." in first["messages"][0]["content"]
    assert second["messages"][1:] == [
        {"role": "user", "content": "valid"},
        {"role": "assistant", "content": OK},
        {"role": "user", "content": "<tool_response>\n3\n</tool_response>"},
    ]


@pytest.mark.slow
def test_native_sends_the_tools_and_auto_goes_by_the_models_name(
    project: Project, stub: Any, tmp_path: Path
) -> None:
    project.tasks([{"prompt": "valid"}])
    server = project.server = stub(reply, models=["stub", "Qwen2.5-0.5B-Instruct"])
    for number, flags in enumerate([["--tool-calls", "native"], [], ["--model", "Qwen2.5-0.5B-Instruct"]]):
        done = project.collect("--env", "sums:Sums", "--out", f"run{number}", *flags)
        assert done.code == 0, done.err
    native, default, *text = server.bodies
    assert native["tools"] == default["tools"]
    assert [len(body["messages"]) for body in text] == [2, 4]
    assert not any("tools" in body for body in text)


def test_a_format_that_nobody_knows_is_refused(project: Project) -> None:
    done = project.collect("--set", "policy.tool_calls=yaml")
    assert done.code == 2
    assert "policy.tool_calls" in done.err
    assert "hermes" in done.err
