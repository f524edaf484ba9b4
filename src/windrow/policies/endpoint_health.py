"""How an endpoint is: answering, asked to be left alone for a while, or paused because it fails.

Five failures in a row pause it, if they come from three rollouts or if nobody took the connection for the last three:
a prompt on which a server stumbles is no outage. A paused endpoint is asked every now and then whether it is there
again. An outage goes on until a call is answered, also over pauses that ended too early.
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
    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.troubled = False  # anything below is not as it was at first
        self.paused = False
        self.reason = ""  # of the last failure
        self.down_since: float | None = None  # the first pause that no answer has followed
        self.held_until = 0.0
        self.spread_s = 0.0  # over which those who were held come back
        self.avoid_until = 0.0
        self._clock = clock
        self._pauses = 0
        self._failures = 0
        self._rollouts: set[str] = set()
        self._refusals = 0

    def available(self, now: float) -> bool:
        return not self.paused and now >= self.held_until

    def failed(self, reason: str, rollout: str, *, connected: bool) -> bool:
        """Count a failure; True when it is the one that pauses the endpoint."""
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
        """How long to wait before the endpoint is asked again: twice as long each time."""
        self._pauses += 1
        return min(FIRST_PAUSE_S * 2.0 ** (self._pauses - 1), MAX_PAUSE_S) * random.uniform(0.75, 1.0)

    def resume(self) -> None:
        """It seems to be there again. Whether it is, the next calls will tell."""
        self.paused = False
        self._reset_failures()

    def answered(self) -> float | None:
        """A call was answered. The seconds that the endpoint was down, if it was."""
        down_s = None if self.down_since is None else self._clock() - self.down_since
        self.troubled = self.paused = False
        self.down_since = None
        self.avoid_until = 0.0
        self._pauses = 0
        self._reset_failures()
        return down_s

    def hold(self, seconds: float) -> None:
        """The server wants no calls for this long."""
        self.held_until = max(self.held_until, self._clock() + seconds)
        self.spread_s = min(0.1 * seconds, 5.0)

    def _reset_failures(self) -> None:
        self._failures = 0
        self._rollouts.clear()
        self._refusals = 0
