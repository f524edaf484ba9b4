"""Progress: the counts of one call, for whoever watches it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import msgspec

from windrow.engine.outcome import Outcome
from windrow.records import OPPONENT

Phase = Literal["serving", "opening", "grading", "running", "aggregating", "tracking"]


class Progress(msgspec.Struct):
    """Counts of this call: what was to be done, what is committed, what is running.

    `failures` counts attempts by the owner/kind of their error, `left` what of `planned` is not settled by agent;
    `graded` of `to_grade` rollouts of earlier calls are judged. `phase` says what is being done now; rollouts run from
    `running_since` to `running_until` (of the monotonic clock).
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
    running_since: float | None = None
    running_until: float | None = None
    waiting_for: tuple[str, ...] = ()  # services that are not up yet

    def snapshot(self) -> Progress:
        """The counts of this moment, which do not change any more."""
        return msgspec.structs.replace(
            self, failures=dict(self.failures), examples=dict(self.examples), left=dict(self.left)
        )

    def begin(self, phase: Phase, *, waiting_for: tuple[str, ...] = ()) -> None:
        """The call begins with something else. In the phase "running", rollouts run from now on."""
        self.phase = phase
        self.waiting_for = waiting_for
        if phase == "running":
            self.running_since = time.monotonic()

    def end_running(self) -> None:
        """No rollout runs any more."""
        self.running_until = time.monotonic()

    def count(self, outcomes: Sequence[Outcome], *, settled: bool) -> None:
        """An attempt is committed. It is counted once, however many seats it has; what they cost and got, for each."""
        first = outcomes[0]
        if first.agent == OPPONENT:
            first = next((outcome for outcome in outcomes if not outcome.opponent), first)
        self.attempts += 1
        self.settled += settled
        self.failed += first.status == "failed"
        self.cancelled += first.status == "cancelled"
        if settled and first.agent in self.left:
            self.left[first.agent] -= 1
        for outcome in outcomes:
            self.tokens += outcome.usage.completion_tokens
            if first.status != "failed":
                self.count_verdict(outcome)
        if first.status == "failed":
            self.count_verdict(cause_of(outcomes))

    def count_verdict(self, outcome: Outcome) -> None:
        """Count a verdict, or what stood in its way; what is pending is counted once it is graded."""
        if outcome.grade == "pending":
            return
        if outcome.error is not None:
            kind = f"{outcome.error.owner}/{outcome.error.kind}"
            self.failures[kind] = self.failures.get(kind, 0) + 1
            self.examples.setdefault(kind, outcome.error.message)
        if outcome.reward is not None and not outcome.opponent:
            self.rewards += 1
            self.reward_sum += outcome.reward


def cause_of(outcomes: Sequence[Outcome]) -> Outcome:
    """Of the seats of a failed episode the one that failed it."""
    return next(
        (outcome for outcome in outcomes if outcome.error and outcome.error.kind != "seat"), outcomes[0]
    )
