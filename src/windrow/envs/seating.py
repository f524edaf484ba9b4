"""Who sits where in a match: the policy that is being run, and the opponents that the settings name.

    env:
      name: my_module:MyGame
      settings:
        opponents: {1: {model: m, base_url: …, sampling: …}}   # by seat; the others are the policy's
        seat_shift: sample                                     # everyone moves on a seat with each sample

Without opponents the policy plays all seats: self-play. `seat_shift` is how many seats on everyone sits: a number, or
`sample`, the number of the sample. A row's own `seat_shift`, a number, takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from windrow.config import PolicyConfig
from windrow.envs.base import BaseEnv
from windrow.envs.match import Match
from windrow.records import Json


class Seating(msgspec.Struct, frozen=True, kw_only=True):
    """The opponents of a match by seat, and by how many seats all players move on; `sample`: by the number of the sample."""

    opponents: dict[int, PolicyConfig] = {}
    seat_shift: int | Literal["sample"] = 0

    def players(self, count: int, *, sample: int, row: Mapping[str, Json]) -> list[int | None]:
        """Who sits at each of `count` seats: None for the policy, else the opponent's number in the settings."""
        shift = row.get("seat_shift", self.seat_shift)
        if shift == "sample":
            shift = sample
        numbers = ((seat - shift) % count for seat in range(count))
        return [number if number in self.opponents else None for number in numbers]

    def check(self, env: type[Match], settings: Mapping[str, Json], row: Mapping[str, Json]) -> None:
        """Raise ValueError where a row's game cannot be seated."""
        count = env.count_seats(settings, row)
        if type(count) is not int or count < 1:
            raise ValueError(f"count_seats() gave {count!r}; expected a number from 1 on")
        if type(row.get("seat_shift", 0)) is not int:
            raise ValueError(f"'seat_shift' must be a number, found {row['seat_shift']!r}")
        if beyond := [seat for seat in self.opponents if not 0 <= seat < count]:
            raise ValueError(f"'opponents' names seat {beyond[0]}; the seats are 0 to {count - 1}")
        if len(self.opponents) == count:
            raise ValueError(f"'opponents' has all {count} seats; one must be the policy's")


def opponent(number: int) -> str:
    """How the model of an opponent is called."""
    return f"opponent_{number}"


def own_settings(env: type[BaseEnv], settings: Mapping[str, Json]) -> dict[str, Json]:
    """The settings that are the environment's: those of a match without its seating."""
    ours = Seating.__struct_fields__ if issubclass(env, Match) else ()
    return {key: value for key, value in settings.items() if key not in ours}


def seating_of(env: type[BaseEnv], settings: Mapping[str, Json]) -> Seating:
    """How a match is seated. Raise ValueError where the settings do not say it right."""
    if not issubclass(env, Match):
        return Seating()
    seating = {key: value for key, value in settings.items() if key in Seating.__struct_fields__}
    if isinstance(opponents := seating.get("opponents"), Mapping):
        seating["opponents"] = {str(seat): policy for seat, policy in opponents.items()}
    try:
        return msgspec.convert(seating, Seating, str_keys=True)
    except msgspec.ValidationError as problem:
        raise ValueError(str(problem)) from None
