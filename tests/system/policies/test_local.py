"""A real language model in the process: valid records, killed and resumed, and the demo's tasks.

Nothing here speaks of rewards: the model is right now and then. `make test` has fetched its file.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import jsonschema
import msgspec
import pytest

from tests.support.command_process import Project
from windrow.policies.models import DEFAULT_MODEL, find_model, pull
from windrow.records import Rollout

DEMO = Path(__file__).parents[3] / "examples" / "demo.jsonl"
# The real tasks lie beside the checkout here and in CI; a stranger's clone does not have them.
GSM8K = Path(__file__).parents[4] / "shared" / "data" / "gsm8k_test.jsonl"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    pull(find_model(DEFAULT_MODEL))
    return Project(tmp_path)


def flags(*more: str) -> list[str]:
    few = ["--max-tokens", "12", "--set", "policy.local.parallel=2"]  # room for eight takes a second to make
    return ["--model", "local", "--out", "run", "--temperature", "0.8", *few, *more]


def check(rollouts: list[Rollout]) -> None:
    """Every record says what a sampled reply must say."""
    schema = msgspec.json.schema(Rollout)
    for rollout in rollouts:
        jsonschema.validate(json.loads(msgspec.json.encode(rollout)), schema)
        assert rollout.status in ("completed", "truncated")
        assert rollout.stop == ("answered" if rollout.status == "completed" else "length")
        assert rollout.grade == "graded"
        assert rollout.policy.model == "local:SmolLM2-135M-Instruct.Q4_1"
        assert 0 < rollout.usage.completion_tokens <= 12
        assert rollout.usage.prompt_tokens > 0
        assert rollout.messages[-1].origin == "policy"
        assert rollout.capture == "tokens"
        tokens = rollout.turns[0].tokens
        assert tokens is not None
        assert tokens.logprobs is not None
        assert len(tokens.output) == len(tokens.logprobs) == 4 * rollout.usage.completion_tokens
        assert len(tokens.prompt_new) == 4 * rollout.usage.prompt_tokens


def test_the_model_is_sampled_and_graded(project: Project) -> None:
    done = project.windrow("collect", str(DEMO), *flags("-k", "2", "--limit", "2"))
    assert done.code == 0, done.err
    rollouts = project.rollouts()
    assert len(rollouts) == 4
    check(rollouts)


def test_the_example_configuration_runs(project: Project) -> None:
    (project.path / "examples").symlink_to(DEMO.parent)
    done = project.windrow(
        "collect", "--config", "examples/rollout_test.yaml", "--limit", "1", "-k", "1", "--out", "run"
    )
    assert done.code == 0, done.err
    assert [m.role for m in project.rollouts()[0].messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]


def test_a_prompt_over_the_context_ends_the_episode_without_a_call(project: Project) -> None:
    project.tasks([{"prompt": "word " * 200, "answer": 1}])
    done = project.windrow("collect", "tasks.jsonl", *flags("--set", "policy.local.context_tokens=128"))
    assert done.code == 0, done.err
    (rollout,) = project.rollouts()
    assert (rollout.status, rollout.stop, rollout.grade) == ("truncated", "context_overflow", "graded")
    assert [turn.writes for turn in rollout.turns] == [None]
    assert rollout.usage.completion_tokens == 0


class TestGsm8k:
    __test__ = GSM8K.exists()  # where it is not, there is nothing to collect

    def test_real_tasks_run_as_they_are_killed_and_resumed(self, project: Project) -> None:
        command = ["collect", str(GSM8K), "--map", "prompt=question", "--map", "answer=answer|after:####"]
        command += flags("--limit", "6", "-k", "2", "--concurrency", "2")
        log = project.run / "rollouts.jsonl"
        running = project.start(*command)
        running.until(
            lambda: log.exists() and log.read_bytes().count(b"\n") >= 3, "three rollouts were committed"
        )
        running.signal(signal.SIGKILL)
        running.wait()
        before = log.read_bytes()
        before = before[: before.rfind(b"\n") + 1]
        done = project.windrow(*command)
        assert done.code == 0, done.err
        assert log.read_bytes().startswith(before)
        rollouts = project.rollouts()
        assert len({rollout.id for rollout in rollouts}) == 12
        check(rollouts)
