"""Gymnasium's toy worlds in words: the rules, the current observation, and the names of the actions.

The text is made from the world itself (its map, its cards, its transitions), so that an option that changes the world
changes the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

Seen = Any  # a Gymnasium observation
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Toy(msgspec.Struct, frozen=True):
    """The description of one kind of world. `actions` are in the order of their numbers, each with its other names."""

    actions: tuple[tuple[str, ...], ...]
    rules: Callable[[Any], str]
    scene: Callable[[Any, Seen], str]
    ending: Callable[[Any, Seen, float], str] = lambda world, seen, reward: ""
    start: int = 0  # the number of the first action

    @property
    def names(self) -> list[str]:
        return [names[0] for names in self.actions]


def toy_of(world: Any) -> Toy:
    """Return the description of this (unwrapped) world; an unknown world gets its numbers and its own rendering."""
    description = KNOWN.get(type(world).__name__)
    if description is not None and type(world).__module__.startswith("gymnasium."):
        return description
    space = world.action_space
    numbers = range(int(space.start), int(space.start) + int(space.n))
    return Toy(tuple((str(n),) for n in numbers), _plain_rules, _plain_scene, start=int(space.start))


# -- on a grid


def _grid(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(" ".join(row) for row in rows)


def _cell_name(row: int, column: int) -> str:
    return f"row {row + 1}, column {column + 1}"


def _sliding(world: Any) -> float | None:
    """Return the probability that a step goes in the intended direction, if that is not certain."""
    for moves in world.P.values():
        outcomes = moves[0]
        if len(outcomes) == 3:
            return float(outcomes[1][0])
    return None


def _slippery(world: Any, what: str) -> str:
    likely = _sliding(world)
    if likely is None:
        return ""
    return f" {what} is slippery: a step goes where you want it to with a probability of {likely:.0%}, else to one side of that."


def _lake_rules(world: Any) -> str:
    return (
        f"You are on a frozen lake of {world.nrow} rows and {world.ncol} columns. P is where you are, S the start, F "
        "frozen ground, H a hole, G the goal. Get to G and do not step into a hole: either ends the game. Against the "
        "edge you stay where you are." + _slippery(world, "The ice")
    )


def _lake_scene(world: Any, seen: Seen) -> str:
    row, column = divmod(int(seen), world.ncol)
    rows = [[letter.decode() for letter in line] for line in world.desc]
    rows[row][column] = "P"
    return f"{_grid(rows)}\nYou are at {_cell_name(row, column)}."


def _lake_ending(world: Any, seen: Seen, reward: float) -> str:
    row, column = divmod(int(seen), world.ncol)
    return {b"G": "You reached the goal.", b"H": "You fell into a hole."}.get(
        bytes(world.desc[row, column]), ""
    )


def _cliff_rules(world: Any) -> str:
    return (
        f"You walk on a grid of {world.shape[0]} rows and {world.shape[1]} columns beside a cliff. P is where you are, S "
        "the start, C the cliff, G the goal. Get to G. Each step costs 1; stepping onto the cliff costs 100 and puts you "
        "back to the start. Against the edge you stay where you are." + _slippery(world, "The ground")
    )


def _cliff_scene(world: Any, seen: Seen) -> str:
    height, width = world.shape
    rows = [["C" if world._cliff[row, column] else "." for column in range(width)] for row in range(height)]
    rows[-1][0], rows[-1][-1] = "S", "G"
    row, column = divmod(int(seen), width)
    rows[row][column] = "P"
    return f"{_grid(rows)}\nYou are at {_cell_name(row, column)}."


def _cliff_ending(world: Any, seen: Seen, reward: float) -> str:
    return "You reached the goal."


# -- the taxi

_STANDS = ("R", "G", "Y", "B")
_IN_TAXI = len(_STANDS)


def _taxi_rules(world: Any) -> str:
    stands = ", ".join(
        f"{name} at {_cell_name(*cell)}" for name, cell in zip(_STANDS, world.locs, strict=True)
    )
    wet = [moves[0][0][0] for moves in world.P.values() if len(moves[0]) == 3]
    rain = (
        f" It rains: a step goes where you want it to with a probability of {wet[0]:.0%}, else to one side of that."
        if wet
        else ""
    )
    return (
        f"You drive a taxi on a grid of 5 rows and 5 columns; row 1 is in the north, column 1 in the west. There are four stands: "
        f"{stands}. T is the taxi; between two columns, : is open and | is a wall. Drive to the passenger, pick them up, "
        "drive to their destination and drop them off there. Each action costs 1; to pick up or drop off where that cannot "
        "be done costs 10; to deliver the passenger gives 20 and ends the game."
        + rain
        + (" The passenger may change the destination on the way." if world.fickle_passenger else "")
    )


def _taxi_scene(world: Any, seen: Seen) -> str:
    row, column, passenger, destination = world.decode(int(seen))
    lines = [[letter.decode() for letter in line] for line in world.desc]
    lines[1 + row][1 + 2 * column] = "T"
    drawn = "\n".join("".join(line) for line in lines)
    where = "is in the taxi" if passenger == _IN_TAXI else f"waits at {_stand(world, passenger)}"
    return (
        f"{drawn}\nThe taxi is at {_cell_name(row, column)}. The passenger {where}. "
        f"The destination is {_stand(world, destination)}."
    )


def _stand(world: Any, number: int) -> str:
    return f"{_STANDS[number]} ({_cell_name(*world.locs[number])})"


def _taxi_ending(world: Any, seen: Seen, reward: float) -> str:
    return "You have delivered the passenger."


# -- at the table


def _blackjack_rules(world: Any) -> str:
    natural = (
        " An ace and a 10 as the first two cards win, unless the dealer has the same."
        if world.sab
        else " To win with an ace and a 10 as the first two cards counts one and a half times."
        if world.natural
        else ""
    )
    return (
        "You play blackjack against a dealer, each card from a full deck. Number cards count as their number, J, Q and K "
        "as 10, an ace (A) as 11 as long as your sum is not more than 21 with it, else as 1. Hit to take a card, stick to take no "
        "more. Over 21 you have lost at once. When you stick, the dealer takes cards up to 17 or more; the higher sum wins, "
        "and a dealer over 21 has lost." + natural
    )


def _blackjack_scene(world: Any, seen: Seen) -> str:
    total, shown, ace = (int(value) for value in seen)
    soft = ", an ace counted as 11" if ace else ""
    return f"Your cards: {_cards(world.player)} (sum {total}{soft}). The dealer shows {_cards([shown])}."


def _blackjack_ending(world: Any, seen: Seen, reward: float) -> str:
    total = int(seen[0])
    if total > 21:
        return f"Your sum is {total}, over 21: you lose."
    how = "You win." if reward > 0 else "You lose." if reward < 0 else "It is a draw."
    return f"The dealer's cards: {_cards(world.dealer)} (sum {_sum(world.dealer)}). {how}"


def _cards(hand: Sequence[int]) -> str:
    return ", ".join("A" if card == 1 else str(card) for card in hand)


def _sum(hand: Sequence[int]) -> int:
    return sum(hand) + (10 if 1 in hand and sum(hand) + 10 <= 21 else 0)


# -- any other


def _plain_rules(world: Any) -> str:
    name = world.spec.id if world.spec is not None else type(world).__name__
    space = world.action_space
    return f"You play {name}. The actions are the numbers from {space.start} to {space.start + space.n - 1}."


def _plain_scene(world: Any, seen: Seen) -> str:
    if world.render_mode == "ansi":
        return _COLOURS.sub("", str(world.render())).strip("\n")
    return f"You observe: {seen}"


_LEFT, _RIGHT, _UP, _DOWN = ("left", "west"), ("right", "east"), ("up", "north"), ("down", "south")

KNOWN = {
    "FrozenLakeEnv": Toy((_LEFT, _DOWN, _RIGHT, _UP), _lake_rules, _lake_scene, _lake_ending),
    "CliffWalkingEnv": Toy((_UP, _RIGHT, _DOWN, _LEFT), _cliff_rules, _cliff_scene, _cliff_ending),
    "TaxiEnv": Toy(
        (
            *(names[::-1] for names in (_DOWN, _UP, _RIGHT, _LEFT)),
            ("pickup", "pick up", "pick-up"),
            ("dropoff", "drop off", "drop-off"),
        ),
        _taxi_rules,
        _taxi_scene,
        _taxi_ending,
    ),
    "BlackjackEnv": Toy(
        (("stick", "stand", "stay"), ("hit",)), _blackjack_rules, _blackjack_scene, _blackjack_ending
    ),
}
