"""The environment `riddles`: asks, and gives one hint after a first wrong reply."""

from __future__ import annotations

from typing import Any

from windrow import Env, Message, Observation, Step, Task
from windrow_riddles.rows import opening_of
from windrow_riddles.scorer import solved


class Riddles(Env):
    version = 1

    async def reset(self, task: Task) -> Observation:
        self._task, self._hinted = task, False
        return Observation(opening_of(task.data or {}))

    async def step(self, reply: Message, results: list[Any]) -> Step:
        if self._hinted or solved(self._task, str(reply.content)):
            return Step(done=True)
        self._hinted = True
        hint = f"It begins with {self._task['solution'][:3]!r}."
        return Step(messages=[{"role": "user", "content": hint}])
