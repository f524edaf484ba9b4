"""Advantages: how much better than its group a rollout was."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, pstdev

ALL_THE_SAME = "rollouts with advantage 0, because the rewards of their group are all the same"
EPSILON = 1e-4  # so that a group of nearly equal rewards is not blown up


def centered(reward: float, rewards: Sequence[float]) -> float:
    """reward − mean of the group; exactly 0 where all its rewards are the same."""
    return 0.0 if min(rewards) == max(rewards) else reward - fmean(rewards)


def grpo(reward: float, rewards: Sequence[float]) -> float:
    """(reward − mean) / (std + 1e-4), std with n − 1 in its denominator: GRPO's, scaled by group."""
    if min(rewards) == max(rewards):
        return 0.0
    mean = fmean(rewards)
    std = math.sqrt(sum((other - mean) ** 2 for other in rewards) / (len(rewards) - 1))
    return (reward - mean) / (std + EPSILON)


def population(reward: float, rewards: Sequence[float]) -> float:
    """(reward − mean) / (std + 1e-8), std with n in its denominator: that of asynchronous workers."""
    return 0.0 if min(rewards) == max(rewards) else (reward - fmean(rewards)) / (pstdev(rewards) + 1e-8)


ADVANTAGES: dict[str, Callable[[float, Sequence[float]], float]] = {
    "grpo": grpo,
    "centered": centered,
    "population": population,
}
