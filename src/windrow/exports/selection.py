"""Which rollouts of a run are exported. Skipped rollouts are counted by reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from windrow.exports.base import Example
from windrow.records import Rollout
from windrow.store.where import parse_where

NOT_GRADED = "not graded"


class Selection:
    """The conditions of an export, and how many rollouts each of them left out."""

    def __init__(
        self,
        *,
        where: str | None = None,
        min_reward: float | None = None,
        best_of_group: bool = False,
        failed: bool = False,
    ) -> None:
        self._where = parse_where(where) if where is not None else None
        self._condition = where
        self._min_reward = min_reward
        self._best_of_group = best_of_group
        self._failed = failed
        self.left_out: Counter[str] = Counter()
        self.seen = 0

    def examples(self, rollouts: Iterable[Rollout], *, groups: bool) -> Iterator[Example]:
        """The rollouts that are to be exported, in the order given; with `groups`, the rewards of each one's group.

        Those are of all its graded rollouts, also of the ones left out here. Only then, and for the best of a group,
        is more than one rollout held: those of one task.
        """
        if not groups and not self._best_of_group:
            for rollout in rollouts:
                if self._takes(rollout):
                    yield Example(rollout)
            return
        for _, of_one_task in groupby(rollouts, key=lambda rollout: rollout.task.index):
            task = list(of_one_task)
            rewards = _rewards(task)
            chosen = [rollout for rollout in task if self._takes(rollout)]
            for rollout in self._best(chosen) if self._best_of_group else chosen:
                yield Example(rollout, tuple(rewards[rollout.group]))

    def _takes(self, rollout: Rollout) -> bool:
        self.seen += 1
        why = self._against(rollout)
        if why is not None:
            self.left_out[why] += 1
        return why is None

    def _against(self, rollout: Rollout) -> str | None:
        if rollout.opponent:
            return "played by an opponent"
        if rollout.status in ("failed", "cancelled") and not self._failed:
            return rollout.status
        if self._where is not None and not self._where(msgspec.to_builtins(rollout)):
            return f"not {self._condition}"
        if rollout.reward is None and (self._min_reward is not None or self._best_of_group):
            return NOT_GRADED
        if self._min_reward is not None and (rollout.reward or 0.0) < self._min_reward:
            return f"reward below {self._min_reward:g}"
        return None

    def _best(self, rollouts: list[Rollout]) -> list[Rollout]:
        """Of each group the one with the highest reward; of equals the first."""
        best: dict[str, Rollout] = {}
        for rollout in rollouts:
            held = best.get(rollout.group)
            if held is None or (rollout.reward or 0.0) > (held.reward or 0.0):
                best[rollout.group] = rollout
        self.left_out["not the best of their group"] += len(rollouts) - len(best)
        return [rollout for rollout in rollouts if rollout is best[rollout.group]]


def _rewards(task: list[Rollout]) -> dict[str, list[float]]:
    rewards_by_group: dict[str, list[float]] = defaultdict(list)
    for rollout in task:
        if rollout.reward is not None and not rollout.opponent:
            rewards_by_group[rollout.group].append(rollout.reward)
    return rewards_by_group
