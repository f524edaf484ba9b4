"""`problem`: one question, one answer, graded by scorers. The row's `prompt` or `messages` is the question."""

from __future__ import annotations

from collections.abc import Mapping

from windrow.envs.base import Env, Observation, Step
from windrow.envs.opening import check_opening, opening
from windrow.records import Json, Message, Task
from windrow.tools import ToolResult


class Problem(Env):
    name = "problem"
    version = 1
    takes_prompt = True

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        if settings:
            raise ValueError(f"{cls.name!r} has no setting {next(iter(settings))!r}")

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        check_opening(row)

    async def reset(self, task: Task) -> Observation:
        return Observation(opening(task, self.ctx.prompt))

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        return Step(done=True, stop="answered")
