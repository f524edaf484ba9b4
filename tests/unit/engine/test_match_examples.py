"""The games of examples/, as a user would play them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from examples.dilemma import Dilemma
from examples.tictactoe import TicTacToe

import windrow
from tests.support.collect_helpers import answering, collected
from windrow import Request, Rollout


async def game(run: Path, env: Any, policy: Any, row: Any, **options: Any) -> list[Rollout]:
    await collected([row], env=env, policy=answering(policy), out=str(run), retries=0, **options)
    return list(windrow.load(run))


def first_free(request: Request) -> str:
    found = re.search("[1-9]", request.messages[-1].text)
    assert found is not None
    return found[0]


async def test_tic_tac_toe_is_played_to_a_win(tmp_path: Path) -> None:
    one, two = await game(tmp_path / "run", TicTacToe, first_free, {"id": "empty"})
    assert (one.reward, two.reward) == (1.0, 0.0)
    assert one.state == two.state == {"board": "XOXOXOX.."}
    assert [message.role for message in two.messages[:2]] == ["system", "user"]


async def test_tic_tac_toe_is_played_to_a_draw(tmp_path: Path) -> None:
    one, two = await game(tmp_path / "run", TicTacToe, first_free, {"id": "late", "board": "XOXXOOOX."})
    assert (one.reward, two.reward) == (0.5, 0.5)
    assert one.state == {"board": "XOXXOOOXX"}
    assert two.turns == ()


@pytest.mark.parametrize("most", [0, 2])
async def test_an_illegal_cell_is_told_and_then_loses(tmp_path: Path, most: int) -> None:
    def stubborn(request: Request) -> str:
        return "1"

    sets = [f"env.settings.max_illegal={most}"]
    one, two = await game(tmp_path / "run", TicTacToe, stubborn, {"id": "empty"}, sets=sets)
    assert (one.reward, two.reward) == (1.0, 0.0)
    assert [turn.parse_error is not None for turn in two.turns] == [True] * (most + 1)
    assert (one.metrics.get("parse_errors_per_turn"), two.stop) == (None, "env_done")


@pytest.mark.parametrize(("choice", "rewards"), [("C", (1.8, 1.8)), ("D", (1.4, 0.4))])
async def test_the_dilemma_is_played_against_tit_for_tat(
    tmp_path: Path, choice: str, rewards: tuple[float, float]
) -> None:
    opponents = '{"1": {"model": "scripted:examples.dilemma:tit_for_tat"}}'
    sets = [f"env.settings.opponents={opponents}"]
    own, other = await game(tmp_path / "run", Dilemma, choice, {"rounds": 3}, sets=sets)
    assert (own.reward, other.reward) == pytest.approx(rewards)
    assert [turn.state["theirs"] for turn in own.turns] == ["C", choice, choice]


async def test_who_does_not_choose_is_asked_again_and_then_nobody_gets_more(tmp_path: Path) -> None:
    one, two = await game(tmp_path / "run", Dilemma, "maybe", {"rounds": 3})
    for rollout in (one, two):
        assert [turn.parse_error for turn in rollout.turns] == ["Reply with C or D."] * 2
        assert (rollout.reward, rollout.grade) == (0.0, "graded")
