"""Two small Gymnasium worlds, registered as a user would: `gymnasium:tests.support.gymnasium_envs:Counter-v0`."""

from __future__ import annotations

from typing import Any

import gymnasium

closed: list[str] = []


class Counter(gymnasium.Env[int, int]):
    """Count to `goal` by adding 2, 3 or 4; drawn in colour. `broken` raises at the first step."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(self, goal: int = 5, broken: bool = False, render_mode: str | None = None) -> None:
        self.goal, self.broken, self.render_mode = goal, broken, render_mode
        self.action_space = gymnasium.spaces.Discrete(3, start=2)
        self.observation_space = gymnasium.spaces.Discrete(100)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if self.broken:
            raise RuntimeError("the counter is broken")
        self.count += action
        return self.count, float(action), self.count >= self.goal, False, {}

    def render(self) -> str:  # type: ignore[override]
        return f"\x1b[41mcount\x1b[0m {self.count} of {self.goal}\n"

    def close(self) -> None:
        closed.append("counter")


gymnasium.register("Counter-v0", Counter)
