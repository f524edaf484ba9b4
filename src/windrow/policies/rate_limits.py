"""Rate limits of a policy: requests per minute and tokens per minute, first come, first served.

Calls are spread over the minute, not sent at its beginning. A call's tokens are not known in advance: while in flight
it counts as an average call, and its usage corrects that once it is known.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from windrow.policies.endpoint_health import Clock

BURST_S = 1.0  # of a rate, that may be made up for after a lull
FIRST_TOKENS = 512  # of a call, before any was answered and where max_tokens is not set
NEWEST_WEIGHT = 0.1  # of the last call in the average

Later = Callable[[float, Callable[[], None]], Any]


class Rates:
    """Lets calls start no faster than both rates allow. The tokens of a call are estimated before it and corrected after it."""

    def __init__(
        self,
        requests_per_minute: float | None,
        tokens_per_minute: float | None,
        *,
        max_tokens: int | None = None,
        clock: Clock = time.monotonic,
        later: Later | None = None,
    ) -> None:
        self._request_s = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._token_s = 60.0 / tokens_per_minute if tokens_per_minute else 0.0
        self._clock = clock
        self._later = later
        self._requests_until = self._tokens_until = clock()  # until when what was sent takes up the rate
        self._expected = float(max_tokens or FIRST_TOKENS)  # tokens of a call
        self._answered = False
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: Any = None

    def take(self) -> Awaitable[None] | None:
        """None where a call may be sent now; else what to await before it. `settle` ends it in either case."""
        now = self._clock()
        if not self._waiting and self._wait_s(now) <= 0:
            self._send(now)
            return None
        return self._queued()

    def settle(self, tokens: int | None) -> None:
        """A call has ended, and used so many tokens; None where nobody knows."""
        self._in_flight = max(0, self._in_flight - 1)
        used = self._expected if tokens is None else tokens
        self._tokens_until = max(self._tokens_until, self._clock() - BURST_S) + used * self._token_s
        if tokens:
            weight = NEWEST_WEIGHT if self._answered else 1.0
            self._expected += weight * (tokens - self._expected)
            self._answered = True
        if self._waiting:
            self._advance()

    def _wait_s(self, now: float) -> float:
        in_flight_s = self._in_flight * self._expected * self._token_s
        tokens_until = max(self._tokens_until, now - BURST_S) + in_flight_s if self._token_s else now
        requests_until = self._requests_until if self._request_s else now
        return max(requests_until, tokens_until) - now

    def _send(self, now: float) -> None:
        self._requests_until = max(self._requests_until, now - BURST_S) + self._request_s
        self._in_flight += 1

    async def _queued(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._advance()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn had come: the call will not be sent
                self.settle(0)
            raise

    def _advance(self) -> None:
        """Let go whose turn it is; look again when the next one's comes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            if not self._waiting[0].done():
                now = self._clock()
                wait_s = self._wait_s(now)
                if wait_s > 0:
                    later = self._later or asyncio.get_running_loop().call_later
                    self._timer = later(wait_s, self._advance)
                    return
                self._send(now)
                self._waiting[0].set_result(None)
            self._waiting.popleft()
