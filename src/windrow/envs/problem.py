"""`problem`: one question, one answer, graded by scorers. The row's `prompt` or `messages` is the question.

The settings are rewards for ends that no scorer sees (`ending_rewards`).
"""

from __future__ import annotations

from collections.abc import Mapping

from windrow.envs.base import Env, Episode, Observation, Step
from windrow.envs.ending_rewards import SETTINGS, check_ending_rewards, ending_reward
from windrow.envs.opening import check_opening, opening
from windrow.records import Json, Message, Score, Task
from windrow.tools import ToolResult


class Problem(Env):
    name = "problem"
    version = 1
    takes_prompt = True

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        unknown = [name for name in settings if name not in SETTINGS]
        if unknown:
            raise ValueError(f"{cls.name!r} has no setting {unknown[0]!r} (known: {', '.join(SETTINGS)})")
        check_ending_rewards(settings)

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        check_opening(row)

    async def reset(self, task: Task) -> Observation:
        return Observation(opening(task, self.ctx.prompt))

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        return Step(done=True, stop="answered")

    async def score(self, episode: Episode) -> Score | None:
        return ending_reward(self.settings, episode)
