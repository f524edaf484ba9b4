"""Other people's environments with a real language model in the process: valid records, whatever it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_process import Project
from windrow.policies.models import DEFAULT_MODEL, find_model, pull

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    pull(find_model(DEFAULT_MODEL))
    return Project(tmp_path)


def flags(*more: str) -> list[str]:
    return [
        "--model",
        "local",
        "--out",
        "run",
        "--max-tokens",
        "12",
        "--set",
        "policy.local.parallel=2",
        *more,
    ]


def test_the_model_answers_questions_of_reasoning_gym_and_is_judged_by_its_verifier(project: Project) -> None:
    done = project.windrow("collect", "reasoning-gym:chain_sum", *flags("--limit", "1", "-k", "2"))
    assert done.code == 0, done.err
    rollouts = project.rollouts()
    assert len(rollouts) == 2
    for rollout in rollouts:
        assert (rollout.env, rollout.grade, rollout.capture) == ("reasoning-gym", "graded", "tokens")
        assert 0 <= rollout.scores["reasoning-gym"].value <= 1
        assert rollout.reward == rollout.scores["reasoning-gym"].value


def test_the_model_walks_on_a_frozen_lake(project: Project) -> None:
    source = "gymnasium:FrozenLake-v1?n=2&is_slippery=false"
    done = project.windrow("collect", source, *flags("--max-turns", "3", "--temperature", "0.8"))
    assert done.code == 0, done.err
    rollouts = project.rollouts()
    assert len(rollouts) == 2
    for rollout in rollouts:
        assert (rollout.env, rollout.capture) == ("gymnasium", "tokens")
        assert rollout.stop in ("env_done", "max_turns", "parse_error", "length")
        assert rollout.messages[0].origin == "task"
        assert rollout.grade == "graded"
        stepped = [turn for turn in rollout.turns if turn.reward is not None]
        assert all(turn.parse_error or turn.state for turn in stepped)


def test_the_model_plays_both_sides_of_tic_tac_toe(project: Project) -> None:
    done = project.windrow("collect", "textarena:TicTacToe-v0?n=2", *flags("--max-turns", "3"))
    assert done.code == 0, done.err
    rollouts = project.rollouts()
    assert sorted((rollout.task["seed"], rollout.seat) for rollout in rollouts) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    for rollout in rollouts:
        assert (rollout.env, rollout.seats, rollout.grade) == ("textarena", 2, "graded")
        assert rollout.reward in (-1.0, 0.0, 1.0)
