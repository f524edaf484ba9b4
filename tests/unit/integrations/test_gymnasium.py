"""Gymnasium's toys as conversations: what is said is enough to play them, and their rewards are the turns' rewards."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

import pytest

from tests.support import gymnasium_envs
from tests.support.collect_helpers import answering, collected, single
from tests.support.task_loading import refusal, resolved, tasks_of
from windrow import Completion, Request, Rollout
from windrow.integrations.gymnasium.descriptions import KNOWN
from windrow.integrations.gymnasium.env import Gymnasium, read_action
from windrow.store.manifest import read_manifest

pytestmark = pytest.mark.slow

STEPS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
COMPASS = {"west": (0, -1), "east": (0, 1), "north": (-1, 0), "south": (1, 0)}
HERE = re.compile(r"at row (\d+), column (\d+)\.")


def cells(text: str) -> list[list[str]]:
    """The grid that a message draws."""
    return [line.split(" ") for line in text.splitlines() if re.fullmatch(r"\S( \S)+", line)]


def first_step(start: Any, goal: Any, moves: Callable[[Any], Iterable[tuple[str, Any]]]) -> str:
    """The first action of a shortest way."""
    seen, queue = {start}, deque((after, action) for action, after in moves(start))
    while queue:
        place, first = queue.popleft()
        if place == goal:
            return first
        if place not in seen:
            seen.add(place)
            queue.extend((after, first) for _, after in moves(place))
    raise AssertionError(f"there is no way from {start} to {goal}")


def walking(request: Request) -> str:
    """Reads nothing but the last message, and goes a shortest way to G that avoids H and C."""
    grid = cells(request.messages[-1].text)
    places = {letter: (r, c) for r, row in enumerate(grid) for c, letter in enumerate(row)}

    def moves(place: tuple[int, int]) -> Iterable[tuple[str, tuple[int, int]]]:
        for action, (down, right) in STEPS.items():
            r, c = place[0] + down, place[1] + right
            if 0 <= r < len(grid) and 0 <= c < len(grid[0]) and grid[r][c] not in "HC":
                yield action, (r, c)

    return f"I go [{first_step(places['P'], places['G'], moves)}]."


def driving(request: Request) -> str:
    """Reads nothing but the last message: the map with its walls, the passenger and the destination."""
    text = request.messages[-1].text
    lines = [line for line in text.splitlines() if re.fullmatch(r"\|.{9}\|", line)]
    taxi = next((r, line.index("T") // 2) for r, line in enumerate(lines) if "T" in line)
    waits = re.search(r"waits at \w \(row (\d+), column (\d+)\)", text)
    wanted = waits or re.search(r"destination is \w \(row (\d+), column (\d+)\)", text)
    assert wanted is not None
    goal = (int(wanted[1]) - 1, int(wanted[2]) - 1)
    if taxi == goal:
        return "Here they are: [pick up]" if waits else "[dropoff]"

    def moves(place: tuple[int, int]) -> Iterable[tuple[str, tuple[int, int]]]:
        for action, (down, right) in COMPASS.items():
            r, c = place[0] + down, place[1] + right
            wall = right and lines[place[0]][1 + place[1] + c] != ":"
            if 0 <= r < 5 and 0 <= c < 5 and not wall:
                yield action, (r, c)

    return first_step(taxi, goal, moves)


def sticking_at_17(request: Request) -> str:
    total = re.search(r"\(sum (\d+)", request.messages[-1].text)
    assert total is not None
    return "stick" if int(total[1]) >= 17 else "hit"


async def played(source: str, policy: Any, **options: Any) -> list[Rollout]:
    options = {"retries": 0, "max_turns": 200, **options}
    return await collected(source, policy=answering(policy), **options)


# -- the four toys


async def test_a_lake_is_crossed_by_who_reads_its_map_and_gives_its_reward(tmp_path) -> None:
    source = "gymnasium:FrozenLake-v1?n=12&map_size=6&is_slippery=false"
    rollouts = await played(source, walking, out=str(tmp_path / "run"))
    assert len({tuple(r.task["kwargs"]["desc"]) for r in rollouts}) == 12  # each has a lake of its own
    for rollout in rollouts:
        assert (rollout.status, rollout.stop, rollout.grade) == ("completed", "env_done", "graded")
        assert [turn.reward for turn in rollout.turns] == [0.0] * (len(rollout.turns) - 1) + [1.0]
        assert rollout.reward == 1.0
        assert rollout.env == "gymnasium"
        assert rollout.messages[-1].text.endswith("You reached the goal.")


async def test_the_message_says_where_the_world_has_put_the_player(tmp_path) -> None:
    source = "gymnasium:FrozenLake-v1?n=5"  # slippery: the place cannot be guessed from the action
    for rollout in await played(source, walking, out=str(tmp_path / "run")):
        for turn in rollout.turns:
            said = rollout.messages[turn.writes + 1].text
            row, column = (int(number) - 1 for number in HERE.search(said).groups())
            assert turn.state["observation"] == 4 * row + column
            assert cells(said)[row][column] == "P"


async def test_a_hole_ends_the_walk_without_reward(tmp_path) -> None:
    source = "gymnasium:FrozenLake-v1?n=1&is_slippery=false"
    [rollout] = await played(source, lambda r: ["[down]", "[right]"][r.turn], out=str(tmp_path / "run"))
    assert (rollout.status, rollout.stop, rollout.reward) == ("completed", "env_done", 0.0)
    assert rollout.messages[-1].text.endswith("You fell into a hole.")


async def test_the_same_seed_is_the_same_game_and_another_seed_another(tmp_path) -> None:
    async def ways(run: str, seed: int) -> list[list[Any]]:
        source = f"gymnasium:FrozenLake-v1?n=6&seed={seed}"
        rollouts = await played(source, "[right]", out=str(tmp_path / run), max_turns=6)
        rollouts.sort(key=lambda rollout: rollout.task["seed"])
        return [[turn.state["observation"] for turn in rollout.turns] for rollout in rollouts]

    first = await ways("1", 0)
    assert await ways("2", 0) == first
    assert (await ways("3", 3))[:3] == first[3:]  # the seeds overlap, and so do the games
    assert len({tuple(way) for way in first}) > 1


async def test_the_samples_of_a_task_play_the_same_game(tmp_path) -> None:
    rollouts = await played(
        "gymnasium:FrozenLake-v1?n=1", "[right]", out=str(tmp_path / "run"), samples=4, max_turns=8
    )
    ways = {tuple(turn.state["observation"] for turn in rollout.turns) for rollout in rollouts}
    assert (len(rollouts), len(ways)) == (4, 1)


async def test_the_run_says_which_version_of_the_package_its_games_come_from(tmp_path) -> None:
    await played("gymnasium:CliffWalking-v1?n=1", "[up]", out=str(tmp_path / "run"), max_turns=1)
    assert read_manifest(tmp_path / "run").versions["gymnasium"] == version("gymnasium")


async def test_a_taxi_is_driven_by_who_reads_the_map_and_its_walls(tmp_path) -> None:
    for rollout in await played("gymnasium:Taxi-v4?n=12", driving, out=str(tmp_path / "run")):
        assert (rollout.status, rollout.stop) == ("completed", "env_done")
        assert [turn.reward for turn in rollout.turns] == [-1.0] * (len(rollout.turns) - 1) + [20.0]
        assert rollout.messages[-1].text.endswith("You have delivered the passenger.")
        assert any("is in the taxi" in message.text for message in rollout.messages)


async def test_a_cliff_is_walked_along_in_thirteen_steps(tmp_path) -> None:
    [rollout] = await played("gymnasium:CliffWalking-v1?n=1", walking, out=str(tmp_path / "run"))
    assert (rollout.stop, rollout.reward, len(rollout.turns)) == ("env_done", -13.0, 13)


async def test_the_cliff_costs_a_hundred_and_leads_back_to_the_start(tmp_path) -> None:
    [rollout] = await played(
        "gymnasium:CliffWalking-v1?n=1", "[right]", out=str(tmp_path / "run"), max_turns=1
    )
    assert rollout.turns[0].reward == -100.0
    assert cells(rollout.messages[-1].text)[3][0] == "P"


async def test_a_hand_of_blackjack_is_told_as_it_was_dealt(tmp_path) -> None:
    rollouts = await played("gymnasium:Blackjack-v1?n=60", sticking_at_17, out=str(tmp_path / "run"))
    ends = set()
    for rollout in rollouts:
        last = rollout.messages[-1].text
        said = "lose" if "lose" in last else "win" if "win" in last else "draw"
        assert rollout.reward == {"lose": -1.0, "draw": 0.0, "win": 1.0}[said]
        for turn in rollout.turns:
            text = rollout.messages[turn.writes + 1].text
            cards = re.search(r"Your cards: (.*) \(sum (\d+)", text)
            hand = [1 if card == "A" else int(card) for card in cards[1].split(", ")]
            soft = 10 if 1 in hand and sum(hand) + 10 <= 21 else 0
            assert turn.state["observation"][0] == int(cards[2]) == sum(hand) + soft
            assert ("an ace counted as 11" in text) == bool(turn.state["observation"][2])
        ends.add(said if "over 21" not in last else "bust")
    assert ends == {"win", "lose", "draw", "bust"}


@pytest.mark.parametrize(
    ("game", "said"),
    [
        ("FrozenLake-v1", "slippery: a step goes where you want it to with a probability of 33%"),
        ("FrozenLake-v1?success_rate=0.9", "a probability of 90%"),
        ("CliffWalkingSlippery-v1", "The ground is slippery"),
        ("Taxi-v4?is_rainy=true", "It rains: a step goes where you want it to with a probability of 80%"),
        ("Taxi-v4?fickle_passenger=true", "may change the destination"),
        ("Blackjack-v1", "An ace and a 10 as the first two cards win"),
        ("Blackjack-v1?sab=false&natural=true", "counts one and a half times"),
    ],
)
async def test_the_rules_say_what_the_options_change(tmp_path, game: str, said: str) -> None:
    plain = {"FrozenLake-v1": "?is_slippery=false", "Blackjack-v1": "?sab=false"}
    bare = game.partition("?")[0].replace("Slippery", "")
    mark = "&" if "?" in game else "?"
    [told] = await played(f"gymnasium:{game}{mark}n=1", "x", out=str(tmp_path / "1"), max_turns=1)
    [other] = await played(
        f"gymnasium:{bare}{plain.get(bare, '?n=1')}", "x", out=str(tmp_path / "2"), max_turns=1, limit=1
    )
    assert said in told.messages[0].text
    assert said not in other.messages[0].text


# -- how it ends


async def test_the_worlds_own_limit_on_steps_truncates_the_episode(tmp_path) -> None:
    source = "gymnasium:CliffWalking-v1?n=1&max_episode_steps=3"
    [rollout] = await played(source, "[up]", out=str(tmp_path / "run"))
    assert (rollout.status, rollout.stop, rollout.grade) == ("truncated", "max_turns", "graded")
    assert (len(rollout.turns), rollout.reward) == (3, -3.0)
    assert rollout.messages[-1].text.endswith("No more steps are allowed.")


async def test_a_reply_without_an_action_is_corrected_and_the_world_does_not_move(tmp_path) -> None:
    source = "gymnasium:CliffWalking-v1?n=1"
    [rollout] = await played(
        source, lambda r: "hm" if r.turn in (0, 1, 3) else "[up]", out=str(tmp_path / "run"), max_turns=5
    )
    assert rollout.stop == "max_turns"
    assert [bool(turn.parse_error) for turn in rollout.turns] == [True, True, False, True, False]
    assert [turn.reward for turn in rollout.turns] == [0.0, 0.0, -1.0, 0.0, -1.0]
    told = "I could not read an action. Answer with one action in brackets: [up] [right] [down] [left]."
    assert rollout.messages[2].text == told


async def test_the_third_such_reply_in_a_row_ends_the_episode_and_it_is_graded(tmp_path) -> None:
    [rollout] = await played("gymnasium:CliffWalking-v1?n=1", "hm", out=str(tmp_path / "run"))
    assert (rollout.status, rollout.stop, rollout.grade) == ("completed", "parse_error", "graded")
    assert (len(rollout.turns), rollout.reward) == (3, 0.0)


async def test_how_often_it_is_corrected_and_what_that_costs_are_settings(tmp_path) -> None:
    sets = ["env.settings.max_parse_errors=0", "env.settings.parse_error_reward=-5"]
    [rollout] = await played(
        "gymnasium:CliffWalking-v1?n=1", "hm", out=str(tmp_path / "run"), env="gymnasium", sets=sets
    )
    assert (rollout.stop, len(rollout.turns), rollout.reward) == ("parse_error", 1, -5.0)


async def test_a_game_that_a_limit_ends_before_its_first_step_is_graded_0(tmp_path) -> None:
    [rollout] = await played(
        "gymnasium:CliffWalking-v1?n=1",
        lambda request: Completion(content="Let me think", finish="length"),
        out=str(tmp_path / "run"),
    )
    assert (rollout.status, rollout.stop) == ("truncated", "length")
    assert (rollout.grade, rollout.reward) == ("graded", 0.0)


@pytest.mark.parametrize("broken", [False, True])
async def test_a_world_is_closed_whatever_happens(tmp_path, broken: bool) -> None:
    row = {
        "env": "gymnasium",
        "game": "tests.support.gymnasium_envs:Counter-v0",
        "kwargs": {"broken": broken},
    }
    resolved([row], trust_rows=True)  # it is made once to be checked
    gymnasium_envs.closed.clear()
    rollout = await single([row], policy=answering("[2]"), out=str(tmp_path / "run"), trust_rows=True)
    assert rollout.status == ("failed" if broken else "completed")
    assert gymnasium_envs.closed == ["counter"]


# -- any other world


async def test_another_world_is_played_by_numbers_and_shown_by_its_own_rendering(tmp_path) -> None:
    source = "gymnasium:tests.support.gymnasium_envs:Counter-v0?n=1&goal=9"
    [rollout] = await played(source, lambda r: f"[{r.turn + 2}]", out=str(tmp_path / "run"))
    assert "the numbers from 2 to 4" in rollout.messages[0].text
    assert "\ncount 0 of 9\nAnswer with one action in brackets: [2] [3] [4]." in rollout.messages[0].text
    assert (rollout.stop, rollout.reward) == ("env_done", 9.0)


async def test_a_world_that_cannot_be_drawn_is_told_by_its_observation(tmp_path) -> None:
    row = {"env": "gymnasium", "game": "CartPole-v1", "rules": "Hold the pole: 0 is left, 1 is right."}
    rollout = await single([row], policy=answering("1"), out=str(tmp_path / "run"), max_turns=1)
    assert rollout.messages[0].text.startswith("Hold the pole: 0 is left, 1 is right.\n\nYou observe: [")
    assert [type(number) for number in rollout.state["observation"]] == [float] * 4


# -- reading an action


@pytest.mark.parametrize(
    ("toy", "text", "action"),
    [
        ("FrozenLakeEnv", "[right]", "right"),
        ("FrozenLakeEnv", "not [left] but [ Right ]", "right"),
        ("FrozenLakeEnv", "[2]", "right"),
        ("FrozenLakeEnv", "[down], since right is a hole", "down"),
        ("FrozenLakeEnv", "I am at row 1, so I go RIGHT to column 3.", "right"),
        ("FrozenLakeEnv", "left? no: down.", "down"),
        ("FrozenLakeEnv", "go east", "right"),
        ("FrozenLakeEnv", "3", "up"),
        ("FrozenLakeEnv", "[Action: up]", "up"),
        ("FrozenLakeEnv", "upright", None),
        ("FrozenLakeEnv", "7, 2.5, -1", None),
        ("FrozenLakeEnv", "", None),
        ("TaxiEnv", "now pick up", "pickup"),
        ("TaxiEnv", "[drop-off]", "dropoff"),
        ("TaxiEnv", "up", "north"),
        ("BlackjackEnv", "with 16 I stand", "stick"),
    ],
)
def test_an_action_is_read_from_brackets_then_by_name_then_by_number(
    toy: str, text: str, action: Any
) -> None:
    found = read_action(text, KNOWN[toy])
    assert (None if found is None else KNOWN[toy].names[found]) == action


# -- the source


def test_a_source_is_the_same_rows_each_time_with_the_games_they_stand_for() -> None:
    source = "gymnasium:FrozenLake-v1?n=3&seed=5&is_slippery=false"
    tasks = tasks_of(source)
    assert [task.data for task in tasks] == [
        {
            "id": f"FrozenLake-v1:{seed}",
            "env": "gymnasium",
            "game": "FrozenLake-v1",
            "kwargs": {"is_slippery": False},
            "seed": seed,
        }
        for seed in (5, 6, 7)
    ]
    assert [task.digest for task in tasks_of(source)] == [task.digest for task in tasks]


def test_a_source_is_named_by_what_shapes_its_games() -> None:
    for path in ("Taxi-v4?n=2&is_rainy=true&seed=1", "Taxi-v4?is_rainy=true"):
        assert resolved(f"gymnasium:{path}").source.name == "gymnasium:Taxi-v4?is_rainy=true"
    assert resolved("gymnasium:Taxi-v4").source.name == "gymnasium:Taxi-v4"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (
            "gymnasium:FrozenLak-v1",
            "there is no Gymnasium world 'FrozenLak-v1'; did you mean 'FrozenLake-v1'?",
        ),
        ("gymnasium:Taxi-v3", "there is no Gymnasium world 'Taxi-v3'"),
        ("gymnasium:no_such_module:X-v0", "No module named 'no_such_module'"),
        (
            "gymnasium:FrozenLake-v1?slippery=true",
            "gymnasium:FrozenLake-v1 has no parameter 'slippery'; did you mean 'is_slippery'? (known: n, seed, desc, "
            "map_name, is_slippery, success_rate, reward_schedule, max_episode_steps, map_size, map_p)",
        ),
        ("gymnasium:Taxi-v4?map_size=4", "has no parameter 'map_size'"),
        ("gymnasium:Taxi-v4?n=0", "n must be a whole number from 1 on, found 0"),
        ("gymnasium:Taxi-v4?seed=x", "seed must be a whole number from 0 on, found x"),
        ("gymnasium:Taxi-v4?n=1&n=2", "n is given twice"),
        ("gymnasium:Taxi-v4?n", "after '?' come parameters"),
        ("gymnasium:", "expected gymnasium:NAME"),
        ("gymnasium:FrozenLake-v1?map_name=null", "makes one that no seed can repeat; give map_size instead"),
        ("gymnasium:FrozenLake-v1?map_name=5x5", "FrozenLake-v1 cannot be made: KeyError: '5x5'"),
        ("gymnasium:FrozenLake-v1?map_p=0", "map_p, the share of frozen ground, is from 0.2 to 1, found 0"),
        ("gymnasium:Pendulum-v1", "only numbered ones can be named"),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused_with_what_is_known(path: str, said: str) -> None:
    assert said in refusal(path)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "'game' must be the id of a Gymnasium world"),
        ({"game": "Taxi-v4", "kwargs": [1]}, "'kwargs' must be an object"),
        ({"game": "Taxi-v4", "seed": -1}, "'seed' must be a whole number from 0 on"),
        ({"game": "Taxi-v4", "rules": 7}, "'rules' must be a text"),
        ({"game": "Taxi-v4", "kwargs": {"rain": True}}, "Taxi-v4 has no option 'rain'"),
        ({"game": "Taxi-v9"}, "there is no Gymnasium world 'Taxi-v9'"),
    ],
)
def test_a_row_that_cannot_be_played_is_refused_before_the_run(row: dict[str, Any], said: str) -> None:
    assert said in refusal([{"env": "gymnasium", **row}])


def test_a_setting_that_is_none_is_refused() -> None:
    row = {"game": "Taxi-v4"}
    said = refusal([row], env="gymnasium", sets=("env.settings.max_parse_error=1",))
    assert "env.settings: Object contains unknown field `max_parse_error`" in said


def test_without_its_extra_the_line_to_type_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "gymnasium"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    line = "env 'gymnasium' needs the extra 'gymnasium'; type: pip install 'windrow-rl[gymnasium]'"
    assert line in refusal("gymnasium:Taxi-v4")


# -- rows are data


def test_a_module_and_options_that_name_files_or_modules_are_demands() -> None:
    kwargs = {"xml_file": "/etc/passwd", "deep": [{"env_id": "canary:World-v0"}], "desc": ["SFFG"], "n": 3}
    row = {"game": "canary:World-v0", "kwargs": kwargs}
    assert [(demand.kind, demand.field) for demand in Gymnasium.demands(row)] == [
        ("module", "game"),
        ("file", "kwargs.xml_file"),
        ("module", "kwargs.deep.env_id"),
    ]
    assert [*Gymnasium.demands({"game": "FrozenLake-v1", "kwargs": {"map_name": "4x4"}})] == []
