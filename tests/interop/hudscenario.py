"""An environment of HUD's second generation as its own package serves it: `python hudscenario.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from hud.environment import Environment

env = Environment("counter")
counter = {"n": 0}


@env.tool()
async def add(by: int) -> int:
    """Add to the counter."""
    counter["n"] += by
    return counter["n"]


@env.tool()
async def reset() -> int:
    """Set the counter to 0."""
    counter["n"] = 0
    return 0


@env.scenario("count")
async def count(start: int, target: int, words: list[str]) -> AsyncGenerator[Any, Any]:
    counter["n"] = start
    answer = yield f"Count from {start} to {target}; then say {words[0]}."
    yield 0.5 * (counter["n"] == target) + 0.5 * (answer == words[0])


if __name__ == "__main__":
    env.run(transport="stdio")
