"""What environments share whose replies a judge grades: a `problem` that brings a scorer, with its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from windrow.config import ScorerConfig
from windrow.envs.base import Observation
from windrow.envs.opening import check_opening
from windrow.envs.problem import Problem
from windrow.records import Json, Task


class Judged(Problem):
    """A `problem` that takes a tinker row's `convo` for `messages`; its settings are those of the scorer it brings."""

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        """They are checked by the scorer that they are for."""

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        check_opening(_with_messages(row))

    @classmethod
    def scorers(cls, settings: Mapping[str, Json]) -> Sequence[ScorerConfig]:
        return [ScorerConfig(name=cls.name, settings=dict(settings))]

    @classmethod
    def identity(cls, settings: Mapping[str, Json]) -> Json:
        return {}  # how replies are graded does not shape them

    async def reset(self, task: Task) -> Observation:
        row = _with_messages(task.data or {})
        return await super().reset(msgspec.structs.replace(task, data=row))


def _with_messages(row: Mapping[str, Json]) -> dict[str, Json]:
    convo = row.get("convo")
    if convo is None:
        return dict(row)
    if row.get("messages") is not None or row.get("prompt") is not None:
        raise ValueError("'convo' is in the row, and 'prompt' or 'messages' too; give one of them")
    return {**{key: value for key, value in row.items() if key != "convo"}, "messages": convo}
