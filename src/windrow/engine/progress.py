"""Progress: the counts of one call, for whoever watches it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from windrow.records import OPPONENT, Rollout

Phase = Literal["serving", "opening", "grading", "running", "aggregating", "tracking"]


class Progress(msgspec.Struct):
    """Counts of this call: what was to be done, what is committed, what is running.

    `failures` counts attempts by the owner/kind of their error, `left` what of `planned` is not settled by agent;
    `graded` of `to_grade` rollouts of earlier calls are judged. `phase` says what is being done now.
    """

    planned: int
    settled: int = 0
    attempts: int = 0
    failed: int = 0
    cancelled: int = 0
    in_flight: int = 0
    rewards: int = 0
    reward_sum: float = 0.0
    tokens: int = 0
    failures: dict[str, int] = {}
    examples: dict[str, str] = {}  # the first message of each kind of failure
    left: dict[str, int] = {}
    to_grade: int = 0
    graded: int = 0
    phase: Phase = "opening"
    waiting_for: tuple[str, ...] = ()  # services that are not up yet

    def count(self, rollouts: Sequence[Rollout], *, settled: bool) -> None:
        """An attempt is committed. It is counted once, however many seats it has; what they cost and got, for each."""
        first = rollouts[0]
        if first.agent == OPPONENT:
            first = next((rollout for rollout in rollouts if not rollout.opponent), first)
        self.attempts += 1
        self.settled += settled
        self.failed += first.status == "failed"
        self.cancelled += first.status == "cancelled"
        if settled and first.agent in self.left:
            self.left[first.agent] -= 1
        for rollout in rollouts:
            self.tokens += rollout.usage.completion_tokens
            if first.status != "failed":
                self.judge(rollout)
        if first.status == "failed":
            self.judge(cause_of(rollouts))

    def judge(self, rollout: Rollout) -> None:
        """Count a verdict, or what stood in its way; what is pending is counted once it is graded."""
        if rollout.grade == "pending":
            return
        if rollout.error is not None:
            kind = f"{rollout.error.owner}/{rollout.error.kind}"
            self.failures[kind] = self.failures.get(kind, 0) + 1
            self.examples.setdefault(kind, rollout.error.message)
        if rollout.reward is not None and not rollout.opponent:
            self.rewards += 1
            self.reward_sum += rollout.reward


def cause_of(rollouts: Sequence[Rollout]) -> Rollout:
    """Of the seats of a failed episode the one that failed it."""
    return next(
        (rollout for rollout in rollouts if rollout.error and rollout.error.kind != "seat"), rollouts[0]
    )
