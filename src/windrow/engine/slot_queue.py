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
    """Gives out slots. `next_slot` returns the next one of the plan, or None; `names` a slot's environment and agent, and
    `limits` is how many of each may run at a time."""

    def __init__(
        self,
        next_slot: Callable[[], Slot | None],
        *,
        limits: Mapping[Name, int] | None = None,
        names: Callable[[Slot], tuple[Name, ...]] = lambda slot: (),
    ) -> None:
        self.limited = bool(limits)
        self._next_slot = next_slot
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
        for position, slot in enumerate(self._aside):
            if self._starts(slot):
                del self._aside[position]
                return slot
        while len(self._aside) < MOST_ASIDE:
            upcoming = self._next()
            if upcoming is None or self._starts(upcoming):
                return upcoming
            self._aside.append(upcoming)
        return None

    def release(self, slot: Slot) -> None:
        """A slot that was taken has ended."""
        if self.limited:
            self._running.subtract(self._names(slot))

    def _next(self) -> Slot | None:
        slot = self._next_slot()
        self._plan_is_through = slot is None
        return slot

    def _starts(self, slot: Slot) -> bool:
        names = self._names(slot)
        if any(self._running[name] >= self._limits.get(name, self._running[name] + 1) for name in names):
            return False
        self._running.update(names)
        return True
