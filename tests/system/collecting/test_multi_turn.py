"""Several turns, end to end: the examples by rule and with the embedded model, replayed; and a fresh environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_process import Project
from windrow.policies.models import DEFAULT_MODEL, find_model, pull

EXAMPLES = Path(__file__).parents[3] / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GUESS = ["collect", "examples/guess.jsonl", "--env", "examples.guess:GuessingGame", "--out", "run"]
SUPPORT = ["collect", "--config", "examples/support.yaml", "--out", "run"]
BY_RULE = "env.settings.user.policy.model=scripted:examples.simulator:customer"
SHORT = ["--set", "limits.max_turns=2", "--set", "policy.sampling.max_tokens=16", "--limit", "1"]
SHORT += ["--set", "policy.local.parallel=1"]  # room for eight episodes takes a second to make


@pytest.fixture
def project(tmp_path: Path) -> Project:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    return Project(tmp_path)


@pytest.fixture
def local(project: Project) -> Project:
    pull(find_model(DEFAULT_MODEL))
    return project


def replays(project: Project) -> None:
    for rollout in project.rollouts():
        again = project.windrow("replay", "run", rollout.id)
        assert again.code == 0, again.out + again.err


def test_the_guessing_game_is_won_by_halving_and_comes_out_again(project: Project) -> None:
    done = project.windrow(*GUESS, "--model", "scripted:examples.guess:bisect", "-k", "2")
    assert done.code == 0, done.err
    rollouts = project.rollouts()
    assert [rollout.reward for rollout in rollouts] == [1.0] * 4
    assert any(len(rollout.turns) > 2 for rollout in rollouts)
    assert all(rollout.state["guesses"][-1] == int(rollout.reply) for rollout in rollouts)
    replays(project)


def test_the_customer_gets_an_answer_and_the_conversation_comes_out_again(project: Project) -> None:
    done = project.windrow(*SUPPORT, "--model", "scripted:examples.simulator:support", "--set", BY_RULE)
    assert done.code == 0, done.err
    for rollout in project.rollouts():
        assert (rollout.status, rollout.stop) == ("completed", "env_done")
        assert rollout.messages[-1].origin == "user"
        assert rollout.metrics["user_calls"] == 2
    replays(project)


def test_the_embedded_model_plays_the_guessing_game(local: Project) -> None:
    done = local.windrow(*GUESS, "--model", "local", *SHORT, "--set", 'policy.sampling.stop=[".", "\\n"]')
    assert done.code == 0, done.err
    [rollout] = local.rollouts()
    assert rollout.stop in ("env_done", "max_turns", "length")
    assert (rollout.grade, rollout.usage.completion_tokens > 0) == ("graded", True)
    replays(local)


def test_the_embedded_model_plays_both_sides_of_a_conversation(local: Project) -> None:
    short = ["--set", "env.settings.user.policy.sampling.max_tokens=16"]
    short += ["--set", "env.settings.user.policy.local.parallel=1"]
    done = local.windrow(*SUPPORT, "--model", "local", *SHORT, *short)
    assert done.code == 0, done.err
    [rollout] = local.rollouts()
    assert rollout.stop in ("env_done", "max_turns", "length")
    said = [message for message in rollout.messages if message.origin == "user"]
    assert len(said) == rollout.metrics.get("user_calls", 0)
    replays(local)


def test_a_fresh_environment_passes_its_own_test_and_collects(tmp_path: Path) -> None:
    project = Project(tmp_path)
    made = project.windrow("init", "env", "word_game")
    assert made.code == 0, made.err
    assert made.out.split()[:3] == ["word_game.py", "test_word_game.py", "word_game_tasks.jsonl"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "test_word_game.py"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "3 passed" in tested.stdout
    project.module("player", 'def play(request):\n    return request.messages[0].text.split("\'")[1][::-1]\n')
    flags = ["--env", "word_game:WordGame", "--model", "scripted:player:play", "--out", "run"]
    done = project.windrow("collect", "word_game_tasks.jsonl", *flags)
    assert done.code == 0, done.err
    assert [rollout.reward for rollout in project.rollouts()] == [1.0] * 3


def test_init_refuses_what_is_there_and_what_is_no_name(tmp_path: Path) -> None:
    project = Project(tmp_path)
    (tmp_path / "test_game.py").write_text("mine", encoding="utf-8")
    refused = project.windrow("init", "env", "game")
    assert (refused.code, "is there already" in refused.err) == (2, True)
    assert [path.name for path in tmp_path.glob("*.py")] == ["test_game.py"]
    assert project.windrow("init", "env", "my-game").code == 2
    assert project.windrow("init", "env", "class").code == 2
    assert project.windrow("init", "env", "game", "--to", "there").code == 0
    assert (tmp_path / "there" / "game.py").exists()
