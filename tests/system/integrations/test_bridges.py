"""Other people's environments by the real command: in several processes, played again, judged again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_process import Project

pytestmark = pytest.mark.slow

PLAYER = """
import re

def play(request):
    if "Connect Four" in request.messages[0].text:
        return f"[col {request.turn % 7}]"
    if "frozen lake" in request.messages[0].text:
        return "[right]" if request.turn % 2 else "[down]"
    return "<answer>7</answer>"
"""
FLAGS = ("--model", "scripted:player:play", "--out", "run", "--workers", "2", "--concurrency", "4")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "player.py").write_text(PLAYER)
    return Project(tmp_path)


@pytest.mark.parametrize(
    ("source", "rollouts"),
    [
        ("gymnasium:FrozenLake-v1?n=6", 6),
        ("textarena:ConnectFour-v0?n=3", 6),
    ],
)
def test_workers_play_and_a_replay_comes_out_as_recorded(
    project: Project, source: str, rollouts: int
) -> None:
    done = project.windrow("collect", source, *FLAGS)
    assert done.code == 0, done.err
    found = project.rollouts()
    assert len(found) == rollouts
    assert {rollout.grade for rollout in found} == {"graded"}
    again = project.windrow("replay", "run", found[0].id)
    assert again.code == 0, again.out + again.err
    assert "came out as recorded" in again.out


def test_a_run_of_reasoning_gym_is_played_by_workers_replayed_and_rescored_from_what_is_recorded(
    project: Project,
) -> None:
    done = project.windrow("collect", "reasoning-gym:chain_sum,rearc?size=1", *FLAGS, "--concurrency", "2")
    assert done.code == 0, done.err
    found = project.rollouts()
    assert [rollout.grade for rollout in found] == ["graded"] * 2
    again = project.windrow("replay", "run", found[0].id)
    assert again.code == 0, again.out + again.err
    assert "came out as recorded" in again.out
    done = project.windrow("rescore", "run", "--scorer", "reasoning-gym=0.5")
    assert done.code == 0, done.err
    for rollout, before in zip(project.rollouts(), found, strict=True):
        assert set(rollout.scores) == {"reasoning-gym", "reasoning-gym.format"}
        assert rollout.reward == 0.5 * rollout.scores["reasoning-gym"].value == 0.5 * before.reward
