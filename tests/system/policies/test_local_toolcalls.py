"""The embedded model calls tools as text: `auto` shows it how, and it does so at least now and then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_process import Project
from windrow.policies.models import DEFAULT_MODEL, find_model, pull

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ENV = """
from windrow import Env, Observation, Step, Tool

NUMBER = {"type": "number"}
PARAMETERS = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
ADD = Tool(name="add", description="Add two numbers.", parameters=PARAMETERS, call=lambda a, b: a + b)

class Sums(Env):
    version = 1

    async def reset(self, task):
        return Observation([{"role": "user", "content": task["prompt"]}], [ADD])

    async def step(self, reply, results):
        return Step(done=True)
"""


def test_the_embedded_model_calls_a_tool_at_least_once(tmp_path: Path) -> None:
    pull(find_model(DEFAULT_MODEL))
    project = Project(tmp_path)
    project.module("sums", ENV)
    project.tasks({"prompt": text} for text in ("Add 9 and 33.", "Call add with a = 3 and b = 4."))
    done = project.windrow(
        *("collect", "tasks.jsonl", "--model", "local", "--env", "sums:Sums", "--out", "run"),
        # One at a time: the second prompt begins as the first one does, and llama.cpp has read that already.
        *(
            "--max-tokens",
            "40",
            "--temperature",
            "0.3",
            "--set",
            "policy.local.parallel=1",
            "--concurrency",
            "1",
        ),
    )
    assert done.code == 0, done.err
    rollouts = project.rollouts()
    assert len(rollouts) == 2
    calls = [call for rollout in rollouts for turn in rollout.turns for call in turn.tool_calls]
    assert any(call.name == "add" and not call.failed for call in calls)
    for rollout in rollouts:
        assert rollout.metrics["turns"] == 1.0
        assert ("<tool_call>" in rollout.messages[1].text) or not rollout.messages[1].tool_calls
