"""The health of one endpoint: available, on hold because it asked for a wait, or paused because it fails.

Five failures in a row pause an endpoint if they come from three rollouts, or if the last three connections were
refused: a single prompt that makes the server fail is not an outage. A paused endpoint is probed now and then. An
outage lasts until a call is answered, even where a pause ended too early.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

FAILURES = 5
ROLLOUTS = 3
REFUSALS = 3
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0
AVOID_S = 1.0  # after a failure another endpoint is preferred

Clock = Callable[[], float]


class EndpointHealth:
    """Counts the failures of one endpoint and decides when it is paused."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.troubled = False  # something below differs from its initial value
        self.paused = False
        self.reason = ""  # of the last failure
        self.down_since: float | None = None  # the first pause that no answer has followed
        self.held_until = 0.0
        self.spread_s = 0.0  # calls that were on hold come back spread over this time
        self.avoid_until = 0.0
        self._clock = clock
        self._pauses = 0
        self._failures = 0
        self._rollouts: set[str] = set()
        self._refusals = 0

    def available(self, now: float) -> bool:
        return not self.paused and now >= self.held_until

    def failed(self, reason: str, rollout: str, *, connected: bool) -> bool:
        """Count a failure; True where it is the one that pauses the endpoint."""
        self.troubled = True
        self.reason = reason
        self.avoid_until = self._clock() + AVOID_S
        self._failures += 1
        self._refusals = 0 if connected else self._refusals + 1
        if len(self._rollouts) < ROLLOUTS:
            self._rollouts.add(rollout)
        affects_everyone = len(self._rollouts) >= ROLLOUTS or self._refusals >= REFUSALS
        return self._failures >= FAILURES and affects_everyone and not self.paused

    def pause(self, reason: str) -> bool:
        """No calls until `resume` or an answer; True where this begins an outage."""
        begins = self.down_since is None
        if begins:
            self.down_since = self._clock()
        self.troubled = self.paused = True
        self.reason = reason
        return begins

    def next_pause_s(self) -> float:
        """Seconds until the next probe of the endpoint: twice as long each time."""
        self._pauses += 1
        return min(FIRST_PAUSE_S * 2.0 ** (self._pauses - 1), MAX_PAUSE_S) * random.uniform(0.75, 1.0)

    def resume(self) -> None:
        """End the pause because a probe succeeded. The outage goes on until a call is answered."""
        self.paused = False
        self._reset_failures()

    def answered(self) -> float | None:
        """Note that a call was answered; return the seconds that the endpoint was down, None if it was not."""
        down_s = None if self.down_since is None else self._clock() - self.down_since
        self.troubled = self.paused = False
        self.down_since = None
        self.avoid_until = 0.0
        self._pauses = 0
        self._reset_failures()
        return down_s

    def hold(self, seconds: float) -> None:
        """Send no calls for this long, as the server asked."""
        self.held_until = max(self.held_until, self._clock() + seconds)
        self.spread_s = min(0.1 * seconds, 5.0)

    def _reset_failures(self) -> None:
        self._failures = 0
        self._rollouts.clear()
        self._refusals = 0
