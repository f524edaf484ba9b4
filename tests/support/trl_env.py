"""Environments as TRL's `environment_factory` takes them."""

from __future__ import annotations

from typing import Any, ClassVar


class Counter:
    """Counts up to the row's goal; its reward is how near it came."""

    closed: ClassVar[list[int]] = []

    def reset(self, goal: int, **row: Any) -> str:
        self.goal, self.count = goal, 0
        return f" Count to {goal}."

    def add(self, step: int) -> str:
        """Add to the counter.

        Args:
            step: how much to add

        Returns:
            the count
        """
        self.count += step
        return str(self.count)

    def get_reward(self) -> float:
        return 1.0 - abs(self.goal - self.count) / self.goal

    def close(self) -> None:
        Counter.closed.append(self.count)


class Silent:
    async def reset(self, **row: Any) -> None:
        return None
