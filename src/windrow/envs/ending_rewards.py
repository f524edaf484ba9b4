"""Rewards for how an episode ended, in the environments that come with Windrow; off unless they are set.

    failed_parse_reward: -1.0       # the calls of the policy could not be read until its attempts were used up
    context_overflow_reward: -0.1   # the conversation no longer fitted into the model's context
    cut_reply_reward: -0.1          # a reply was cut off: max_tokens, or the budget of the episode

Each is a score of that name, with weight 1: it is added to what scorers give.
"""

from __future__ import annotations

from collections.abc import Mapping

from windrow.envs.base import Episode
from windrow.records import Json, Score, Stop

SETTINGS: Mapping[str, tuple[Stop, ...]] = {
    "failed_parse_reward": ("parse_error",),
    "context_overflow_reward": ("context_overflow",),
    "cut_reply_reward": ("length", "max_episode_tokens"),
}


def check_ending_rewards(settings: Mapping[str, Json]) -> None:
    """Raise ValueError for one that is no number."""
    for name in SETTINGS:
        value = settings.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{name!r} must be a number, found {value!r}")


def ending_reward(settings: Mapping[str, Json], episode: Episode) -> Score | None:
    """The reward for this end; None where none is set for it."""
    for name, stops in SETTINGS.items():
        if episode.stop in stops and settings.get(name) is not None:
            return Score({name: (float(settings[name]), 1.0)})
    return None
