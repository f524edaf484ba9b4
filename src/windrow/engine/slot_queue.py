"""The slots still to be run, and which of them may start now.

An environment or an agent may have a limit of its own (ten browsers, one simulator). A slot that it holds back waits
aside, and later ones overtake it, up to a bound; so one full environment does not stop the others.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

from windrow.tasks.plan import Slot

MOST_ASIDE = 1024

Name = tuple[str, str]  # ("env", "web"), ("agent", "chat")


class SlotQueue:
    """`following` gives the next slot of the plan, or None. `names` are a slot's environment and agent, `limits` how many
    of each may run at a time."""

    def __init__(
        self,
        following: Callable[[], Slot | None],
        *,
        limits: Mapping[Name, int] | None = None,
        names: Callable[[Slot], tuple[Name, ...]] = lambda slot: (),
    ) -> None:
        self.limited = bool(limits)
        self._following = following
        self._limits = limits or {}
        self._names = names
        self._aside: deque[Slot] = deque()
        self._running: Counter[Name] = Counter()
        self._plan_is_through = False

    @property
    def exhausted(self) -> bool:
        """Whether `take` has given out the last of them."""
        return self._plan_is_through and not self._aside

    def take(self) -> Slot | None:
        """The next slot that may start; None when there is none, or none before another ends."""
        if not self.limited:
            return self._next()
        for place, slot in enumerate(self._aside):
            if self._starts(slot):
                del self._aside[place]
                return slot
        while len(self._aside) < MOST_ASIDE:
            following = self._next()
            if following is None or self._starts(following):
                return following
            self._aside.append(following)
        return None

    def release(self, slot: Slot) -> None:
        """A slot that was taken has ended."""
        if self.limited:
            self._running.subtract(self._names(slot))

    def _next(self) -> Slot | None:
        slot = self._following()
        self._plan_is_through = slot is None
        return slot

    def _starts(self, slot: Slot) -> bool:
        names = self._names(slot)
        if any(self._running[name] >= self._limits.get(name, self._running[name] + 1) for name in names):
            return False
        self._running.update(names)
        return True
