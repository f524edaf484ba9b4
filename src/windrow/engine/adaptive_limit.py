"""How many episodes run at a time: a fixed number, or one that adapts to the endpoint.

`--concurrency auto` grows while the endpoint keeps up and halves when it does not: an overload (429, 503, a call that
took too long) halves at once; a window of calls that were answered in time lets it grow, fast until the first
overload, then slowly. Latency counts as keeping up while a window's median stays under twice the best one.
"""

from __future__ import annotations

from collections.abc import Callable

START = 16
MOST_EPISODES = 1024
SLOWER = 2.0  # the median latency at which it is not worth while to grow
FAST, SLOW = 1.5, 1.05  # how it grows, before and after the first overload
FORGET = 1.02  # a window: the best latency fades, since what is asked changes


class AdaptiveLimit:
    """`limit` episodes may run now, and never more than `most`. `on_growth` is called when the limit has been raised."""

    def __init__(
        self, most: int, *, adaptive: bool = False, on_growth: Callable[[], None] = lambda: None
    ) -> None:
        self.most = most
        self.limit = min(START, most) if adaptive else most
        self.adaptive = adaptive
        self._on_growth = on_growth
        self._growth = FAST
        self._best_s: float | None = None
        self._window: list[float] = []
        self._skip = 0  # calls that were already under way at the last halving say nothing new

    def call_ended(self, seconds: float, *, overloaded: bool) -> None:
        """A model call has ended."""
        if not self.adaptive:
            return
        if self._skip:
            self._skip -= 1
        elif overloaded:
            self._halve()
        else:
            self._window.append(seconds)
            if len(self._window) >= self.limit:
                self._judge()

    def _halve(self) -> None:
        self._skip = self.limit - 1
        self.limit = max(1, self.limit // 2)
        self._growth = SLOW
        self._window.clear()

    def _judge(self) -> None:
        typical = sorted(self._window)[len(self._window) // 2]
        self._window.clear()
        best = min(typical, self._best_s * FORGET) if self._best_s is not None else typical
        self._best_s = best
        if typical <= SLOWER * best and self.limit < self.most:
            self.limit = min(self.most, max(self.limit + 1, int(self.limit * self._growth)))
            self._on_growth()
