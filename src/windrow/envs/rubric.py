"""`rubric`: a `problem` whose replies a judge grades by criteria: the row's `rubric`, or those of the settings.

The settings are those of the scorer `rubric`, which it brings. Rows may have their conversation and their criteria in
fields that an integration declares.
"""

from __future__ import annotations

from collections.abc import Mapping

from windrow.envs.base import Observation
from windrow.envs.judged import Judged
from windrow.errors import EnvError
from windrow.records import Json, Task
from windrow.tasks.rubrics import rubric_of


class Rubric(Judged):
    name = "rubric"
    version = 1

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        super().check_row(row)
        rubric_of(row)

    async def reset(self, task: Task) -> Observation:
        if rubric_of(task.data or {}) is None and self.settings.get("criteria") is None:
            raise EnvError(
                "there are no criteria: give them in the row ('rubric') or in the settings ('criteria')",
                retryable=False,
            )
        return await super().reset(task)
