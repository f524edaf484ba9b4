"""Small environments, agents and scorers that tests name by import path (`tests.support.named_parts:Loud`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windrow import Agent, Env, Message, Observation, Step, Task


class Loud(Env):
    """Asks the row's prompt in capitals, with the setting `suffix` after it."""

    version: str | int | None = 1

    async def reset(self, task: Task) -> Observation:
        text = str(task["prompt"]).upper() + str(self.settings.get("suffix", ""))
        return Observation([{"role": "user", "content": text}])

    async def step(self, reply: Message, results: list[Any]) -> Step:
        return Step(done=True)

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        if set(settings) - {"suffix"}:
            raise ValueError(f"no setting {min(settings)!r}")


class Twice(Agent):
    """Asks the policy twice before the environment sees a reply."""

    version = 1

    async def run(self, session: Any) -> None:
        await session.complete()
        reply = await session.complete()
        await session.step(reply)


def half(task: Task, reply: str) -> float:
    return 0.5
