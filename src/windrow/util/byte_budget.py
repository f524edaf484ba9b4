"""A budget of bytes that this process may hold of what servers send: a few giant replies must not take all memory.

Small replies are free, so that counting costs nothing.
"""

from __future__ import annotations

from threading import Lock

FREE_BYTES = 256 << 10  # of each reply
STEP_BYTES = 1 << 20


class ByteBudget:
    """`max_bytes` may be held at a time, by all holders together."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._lock = Lock()

    def take(self, size: int) -> bool:
        with self._lock:
            if self.held_bytes + size > self.max_bytes:
                return False
            self.held_bytes += size
            return True

    def give_back(self, size: int) -> None:
        with self._lock:
            self.held_bytes -= size

    def __str__(self) -> str:
        return f"{self.max_bytes >> 20:,} MiB"


class HeldBytes:
    """What one reply holds of a budget; it is given back when this object goes."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._size = 0

    @property
    def covered_bytes(self) -> int:
        """How long the reply may become before `cover` is to be called again."""
        return self._size or FREE_BYTES

    def cover(self, size: int) -> bool:
        """Hold enough for a reply of this size; False if the budget has not that much left."""
        if size <= self.covered_bytes:
            return True
        wanted = -(-size // STEP_BYTES) * STEP_BYTES
        if not self._budget.take(wanted - self._size):
            return False
        self._size = wanted
        return True

    def __del__(self) -> None:
        if self._size:
            self._budget.give_back(self._size)


REPLIES = ByteBudget(512 << 20)  # of this process: replies that arrive, and those that episodes keep
SETTING = "limits.replies_in_flight_mb"


def too_much() -> str:
    """What to say where the budget of replies is spent."""
    return f"the replies that this process holds would take more than {REPLIES}; {SETTING} allows more"
