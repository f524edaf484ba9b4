"""The common part of environments whose replies a judge grades: a `problem` that brings a scorer with its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from windrow.config import ScorerConfig
from windrow.envs.base import Observation
from windrow.envs.ending_rewards import SETTINGS, check_ending_rewards
from windrow.envs.opening import check_opening
from windrow.envs.problem import Problem
from windrow.records import Json, Task
from windrow.registry import integrations


class Judged(Problem):
    """A `problem` whose settings are those of the scorer that it brings.

    A row's conversation may be in a field that an integration declares, in place of `messages`.
    """

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        """The others are checked by the scorer that they are for."""
        check_ending_rewards(settings)

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        check_opening(_with_messages(row))

    @classmethod
    def scorers(cls, settings: Mapping[str, Json]) -> Sequence[ScorerConfig]:
        own = {name: value for name, value in settings.items() if name not in SETTINGS}
        return [ScorerConfig(name=cls.name, settings=own)]

    @classmethod
    def identity(cls, settings: Mapping[str, Json]) -> Json:
        # How replies are graded does not shape them; what the environment gives is not graded again.
        return {name: value for name, value in settings.items() if name in SETTINGS}

    async def reset(self, task: Task) -> Observation:
        row = _with_messages(task.data or {})
        return await super().reset(msgspec.structs.replace(task, data=row))


def _with_messages(row: Mapping[str, Json]) -> dict[str, Json]:
    fields = (field for integration in integrations() for field in integration.conversation_fields)
    field = next((field for field in fields if row.get(field) is not None), None)
    if field is None:
        return dict(row)
    if row.get("messages") is not None or row.get("prompt") is not None:
        raise ValueError(f"{field!r} is in the row, and 'prompt' or 'messages' too; give one of them")
    return {**{key: value for key, value in row.items() if key != field}, "messages": row[field]}
