"""An environment of three turns, as `bare_client.py --turns 3` plays them: it doubts the first two replies."""

from __future__ import annotations

from windrow import Env, Message, Observation, Score, Step, Task
from windrow.envs import Episode
from windrow.tools import ToolResult

TURNS = 3


class ThreeTurns(Env):
    version = 1

    async def reset(self, task: Task) -> Observation:
        self.replies = 0
        return Observation([{"role": "user", "content": task["prompt"]}])

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        self.replies += 1
        if self.replies == TURNS:
            return Step(done=True)
        return Step(messages=[{"role": "user", "content": "Are you sure?"}])

    async def score(self, episode: Episode) -> Score:
        return Score(float(len(episode.turns) == TURNS))
