"""TextArena's games as matches: each seat sees its own, the game's rewards and rules are its own, and none disturbs another."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import textarena

from tests.support.collect_helpers import answering, collected
from tests.support.task_loading import refusal, resolved, tasks_of
from windrow import Request, Rollout, load
from windrow.integrations.textarena.env import TextArena

pytestmark = pytest.mark.slow


def listed(request: Request) -> str:
    """The first move of the last list of moves in what was said last."""
    lists = re.findall(r"(?:vailable|alid|ossible|remaining)[^:\n]*:(.*)", request.messages[-1].text)
    return re.findall(r"\[[^\]]+\]", lists[-1])[0]


def nim(request: Request) -> str:
    piles = re.findall(r"pile (\d): (\d+)", request.messages[-1].text)[-3:]
    return next(f"[{pile} {left}]" for pile, left in piles if left != "0")


def connect(request: Request) -> str:
    boards = re.findall(r"-+\n((?:[.XO ]+\n?){6})", request.messages[-1].text)
    free = [column for column, disc in enumerate(boards[-1].split("\n")[0].split()) if disc == "."]
    return f"[col {free[0]}]"


def pig(request: Request) -> str:
    total = re.findall(r"turn total is (\d+)", request.messages[-1].text)[-1]
    return "[hold]" if int(total) >= 8 else "[roll]"


def by_player(*moves: str) -> Callable[[Request], str]:
    return lambda request: moves[int(re.search(r"Player (\d)", request.messages[0].text)[1])]


def liar(request: Request) -> str:
    return "[Call]" if "bids" in request.messages[-1].text.rpartition("New round")[2] else "[Bid: 1, 6]"


GAMES: dict[str, Callable[[Request], str]] = {
    "TicTacToe-v0": listed,
    "WildTicTacToe-v0": listed,
    "SimpleTak-v0": listed,
    "Othello-v0-tiny": listed,
    "KuhnPoker-v0-short": listed,
    "GameOfPureStrategy-v0": listed,
    "ConnectFour-v0": connect,
    "Nim-v0": nim,
    "PigDice-v0-short": pig,
    "IteratedRockPaperScissors-v0": by_player("[rock]", "[paper]"),
    "IteratedMatchingPennies-v0": by_player("[heads]", "[tails]"),
    "IteratedPrisonersDilemma-v0": by_player("[Cooperate]", "[Defect]"),
    "ColonelBlotto-v0-small": lambda request: "[A8 B8 C4]",
    "LiarsDice-v0-small": liar,
}


async def played(source: str, policy: Any, run: Path, **options: Any) -> list[Rollout]:
    """The seats of each game, in order."""
    options = {"retries": 0, "max_turns": 200, **options}
    await collected(source, policy=answering(policy), out=str(run), **options)
    return sorted(load(run), key=lambda rollout: (rollout.task["seed"], rollout.sample, rollout.seat or 0))


def replies(rollout: Rollout) -> list[str]:
    return [message.text for message in rollout.messages if message.origin == "policy"]


def told(rollout: Rollout) -> str:
    return "\n".join(message.text for message in rollout.messages if message.origin != "policy")


def own_game(seats: list[Rollout]) -> tuple[list[float], list[str]]:
    """What the package itself gives for these replies and tells each player, alone in the process."""
    task = seats[0].task
    game = textarena.make(f"{task['game']}-raw", **task["kwargs"])
    game.reset(num_players=len(seats), seed=task["seed"])
    left = [iter(replies(seat)) for seat in seats]
    heard: list[list[Any]] = [[] for _ in seats]
    done = False
    while not done:
        player, observations = game.get_observation()
        heard[player] += observations
        done, _ = game.step(action=next(left[player]))
    assert [list(rest) for rest in left] == [[] for _ in seats]
    lines = [
        [
            f"[{game.state.role_mapping.get(sender, 'GAME')}] {text}"
            for sender, text, kind in (*heard[player], *game.state.observations[player])
            if sender != player or kind is not textarena.ObservationType.PLAYER_ACTION
        ]
        for player in range(len(seats))
    ]
    rewards, _ = game.close()
    return [float(rewards[player]) for player in range(len(seats))], ["\n".join(each) for each in lines]


def own_rewards(seats: list[Rollout]) -> list[float]:
    return own_game(seats)[0]


@pytest.mark.parametrize("game", GAMES)
async def test_a_game_is_played_to_its_end_and_its_own_rewards_are_the_seats(tmp_path, game: str) -> None:
    rollouts = await played(f"textarena:{game}?n=2", GAMES[game], tmp_path / "run")
    assert [rollout.seat for rollout in rollouts] == [0, 1, 0, 1]
    for seats in (rollouts[:2], rollouts[2:]):
        for seat in seats:
            assert (seat.status, seat.stop, seat.grade) == ("completed", "env_done", "graded")
            assert (seat.env, seat.seats) == ("textarena", 2)
            assert [turn.parse_error for turn in seat.turns] == [None] * len(seat.turns)
        assert ([seat.reward for seat in seats], [told(seat) for seat in seats]) == own_game(seats)


async def test_games_side_by_side_have_each_its_own_randomness_and_leave_that_of_others_alone(
    tmp_path,
) -> None:
    async def hesitating(request: Request) -> str:
        for _ in range(hash(request.id) % 5):
            await asyncio.sleep(0)
        return pig(request)

    random.seed(5)
    before = random.getstate()
    rollouts = await played("textarena:PigDice-v0-short?n=12", hesitating, tmp_path / "run", concurrency=12)
    assert random.getstate() == before
    rewards = [[seat.reward for seat in rollouts[n : n + 2]] for n in range(0, 24, 2)]
    assert rewards == [own_rewards(rollouts[n : n + 2]) for n in range(0, 24, 2)]
    assert len({len(rollout.turns) for rollout in rollouts}) > 1


async def test_a_seat_is_told_its_own_cards_and_what_is_said_to_all_once(tmp_path) -> None:
    zero, one = await played("textarena:KuhnPoker-v0-short?n=1", listed, tmp_path / "run")
    dealt = re.compile(r"round (\d) out of 5 rounds. Your card is: '(\w)'")
    cards = [dict(dealt.findall(told(seat))) for seat in (zero, one)]
    assert all({"1", "2", "3", "4", "5"} <= own.keys() for own in cards)
    assert all(cards[0][number] != cards[1][number] for number in cards[0])  # three cards, each there once
    for number, seat in enumerate((zero, one)):
        assert seat.messages[0].text.startswith(f"[GAME] You are Player {number} in a 5 round game")
        assert told(seat).count("You are Player") == 1
        assert f"[Player {number}]" not in told(seat)  # its own moves it knows
        assert f"[Player {1 - number}]" in told(seat)


async def test_an_illegal_move_is_told_and_a_second_one_loses_by_the_games_own_rule(tmp_path) -> None:
    def clumsy(request: Request) -> str:
        return "[99]" if "You are Player 0" in request.messages[0].text else listed(request)

    loser, winner = await played("textarena:TicTacToe-v0?n=1", clumsy, tmp_path / "run")
    assert (loser.reward, winner.reward) == (-1.0, 1.0)
    assert (loser.status, loser.stop, winner.status) == ("completed", "env_done", "completed")
    assert ["Must be between 0 and 8" in (turn.parse_error or "") for turn in loser.turns] == [True, True]
    assert "attempted an invalid move" in loser.messages[2].text
    assert [seat.reward for seat in (loser, winner)] == own_rewards([loser, winner])


async def test_after_one_illegal_move_the_game_goes_on(tmp_path) -> None:
    def once(request: Request) -> str:
        return "[99]" if request.turn == 0 else listed(request)

    seats = await played("textarena:TicTacToe-v0?n=1", once, tmp_path / "run")
    for seat in seats:
        assert [turn.parse_error is not None for turn in seat.turns][:2] == [True, False]
    assert sorted(seat.reward for seat in seats) == [-1.0, 1.0]


async def test_a_seat_that_a_limit_ends_has_lost(tmp_path) -> None:
    left, stayed = await played("textarena:TicTacToe-v0?n=1", listed, tmp_path / "run", max_turns=2)
    assert (left.status, left.stop, left.reward) == ("truncated", "max_turns", -1.0)
    assert (stayed.status, stayed.grade, stayed.reward) == ("completed", "graded", 1.0)


async def test_what_was_thought_before_a_move_is_no_part_of_it(tmp_path) -> None:
    def thinking(request: Request) -> str:
        return f"<think>perhaps [8]</think>{listed(request)}"

    _, one = await played("textarena:TicTacToe-v0?n=1", thinking, tmp_path / "run")
    assert "placed their symbol (O) in cell 0." in one.messages[0].text
    assert "perhaps" not in "".join(m.text for m in one.messages if m.origin != "policy")


async def test_a_fixed_opponent_takes_a_seat(tmp_path) -> None:
    opponents = '{1: {model: "scripted:tests.unit.integrations.test_textarena:listed"}}'
    rollouts = await played(
        "textarena:TicTacToe-v0?n=1",
        listed,
        tmp_path / "run",
        env="textarena",
        sets=[f"env.settings.opponents={opponents}"],
    )
    assert [(rollout.agent, rollout.reward) for rollout in rollouts] == [("chat", 1.0), ("opponent", -1.0)]


async def test_a_game_for_more_has_as_many_seats(tmp_path) -> None:
    seats = await played("textarena:LiarsDice-v0-small?n=1&players=3", liar, tmp_path / "run")
    assert [(seat.seat, seat.seats, seat.status) for seat in seats] == [
        (number, 3, "completed") for number in range(3)
    ]
    assert [seat.reward for seat in seats] == own_rewards(seats)


# -- the source


def test_a_source_is_the_same_rows_each_time_named_by_what_shapes_its_games() -> None:
    found = resolved("textarena:ConnectFour-v0?n=2&seed=4&num_cols=8")
    assert found.source.name == "textarena:ConnectFour-v0?num_cols=8"
    assert [task.data for task in tasks_of("textarena:ConnectFour-v0?n=2&seed=4&num_cols=8")] == [
        {
            "id": f"ConnectFour-v0:{seed}",
            "env": "textarena",
            "game": "ConnectFour-v0",
            "kwargs": {"num_cols": 8},
            "players": 2,
            "seed": seed,
        }
        for seed in (4, 5)
    ]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("TicTacTo-v0", "there is no TextArena game 'TicTacTo-v0'; did you mean 'TicTacToe-v0'?"),
        (
            "ConnectFour-v0?columns=8",
            "textarena:ConnectFour-v0 has no parameter 'columns' (known: n, seed, players, is_open, num_rows, num_cols)",
        ),
        (
            "TicTacToe-v0?players=3",
            "cannot be set up for 3 players: AssertionError: The number of players has to be 2",
        ),
        ("TicTacToe-v0?players=1", "players must be a whole number from 2 on, found 1"),
        ("Sudoku-v0", "cannot be set up for 2 players: AssertionError: The number of players has to be 1"),
        pytest.param(
            "Debate-v0",
            "Debate-v0 cannot be made: ValueError: OpenRouter API key not found",
            marks=pytest.mark.slow,  # it imports a client
        ),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused_with_what_is_known(
    monkeypatch: pytest.MonkeyPatch, path: str, said: str
) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    assert said in refusal(f"textarena:{path}")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "'game' must be the id of a TextArena game"),
        ({"game": "Nim-v0", "kwargs": 1}, "'kwargs' must be an object"),
        ({"game": "Nim-v0", "seed": "x"}, "'seed' must be a whole number from 0 on"),
        ({"game": "Nim-v0", "players": 0}, "'players' must be a whole number from 2 on"),
        ({"game": "Nim-v0", "kwargs": {"pile": []}}, "Nim-v0 has no option 'pile'; did you mean 'piles'?"),
        ({"game": "Nim-v9"}, "there is no TextArena game 'Nim-v9'"),
    ],
)
def test_a_row_that_cannot_be_played_is_refused_before_the_run(row: dict[str, Any], said: str) -> None:
    assert said in refusal([{"env": "textarena", **row}])


def test_a_setting_is_refused_since_the_rules_are_the_games_own() -> None:
    said = refusal([{"game": "Nim-v0"}], env="textarena", sets=("env.settings.max_illegal=3",))
    assert "'textarena' has no setting 'max_illegal'; the rules are the game's own" in said


def test_without_its_extra_the_line_to_type_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textarena", None)
    line = "env 'textarena' needs the extra 'textarena'; type: pip install 'windrow-rl[textarena]'"
    assert line in refusal("textarena:Nim-v0")


# -- rows are data


def test_an_option_that_names_a_file_is_a_demand() -> None:
    row = {"game": "TruthAndDeception-v0", "kwargs": {"data_path": "/etc/passwd", "max_turns": 3}}
    assert [(demand.kind, demand.name) for demand in TextArena.demands(row)] == [("file", "/etc/passwd")]
    assert [*TextArena.demands({"game": "TicTacToe-v0"})] == []


def test_a_game_whose_jury_is_asked_over_the_network_demands_its_key_and_its_host() -> None:
    kinds = {(demand.kind, demand.name) for demand in TextArena.demands({"game": "Debate-v0"})}
    assert kinds == {("variable", "OPENROUTER_API_KEY"), ("host", "openrouter.ai")}
