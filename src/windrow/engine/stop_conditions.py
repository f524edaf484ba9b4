"""Conditions that stop a run by itself: too many failures, an endpoint that stays away, a budget that is used up.

Failures, tokens and cost stop it as one Ctrl-C does: what runs is finished first, so a budget may be exceeded by what is
in flight. Seconds cut what runs: it is recorded as cancelled (budget) and run again by the next call. Every attempt
is paid for, also one that failed.
"""

from __future__ import annotations

import asyncio

from windrow.config import BudgetConfig
from windrow.engine.control import Control
from windrow.engine.outcome import Outcome
from windrow.engine.progress import Progress
from windrow.records import Usage

JUDGED_FROM = 20  # settled rollouts; fewer say little of a rate


class StopConditions:
    """Watches failures and what is spent, and stops the run through its `control`."""

    def __init__(self, control: Control, *, budget: BudgetConfig, max_failure_rate: float | None) -> None:
        self._control = control
        self._budget = budget
        self._max_failure_rate = max_failure_rate
        self._tokens = 0
        self._cost = 0.0
        self._failed = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The clock of the call begins."""
        seconds = self._budget.seconds
        if seconds is not None:
            why = f"the budget of {seconds:,g} seconds is used up"
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._control.cancel, why, "budget")

    def release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def attempt_ended(self, outcome: Outcome) -> None:
        """An attempt has ended."""
        self.add_usage(outcome.usage)
        if outcome.error is not None and outcome.error.kind == "outage":
            self._control.stop(outcome.error.message)

    def add_usage(self, usage: Usage) -> None:
        """Count the tokens and the cost of an attempt or of a judge's call."""
        budget = self._budget
        self._tokens += usage.prompt_tokens + usage.completion_tokens
        self._cost += usage.cost or 0.0
        if budget.tokens is not None and self._tokens >= budget.tokens:
            self._control.stop(f"the budget of {budget.tokens:,} tokens is used up", "budget")
        if budget.cost is not None and self._cost >= budget.cost:
            self._control.stop(
                f"the budget of {budget.cost:,g} is used up ({self._cost:,.4g} so far)", "budget"
            )

    def slot_settled(self, outcome: Outcome, progress: Progress) -> None:
        """A slot is settled for this call, and counted in `progress`."""
        self._failed += outcome.status == "failed"
        most = self._max_failure_rate
        if most is None or progress.settled < min(JUDGED_FROM, progress.planned):
            return
        if self._failed > most * progress.settled:
            self._control.stop(
                f"{self._failed:,} of {progress.settled:,} rollouts failed, more than --max-failure-rate {most:g}"
            )
