"""What all scorers have: a name, a weight, settings, and perhaps models that they ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from windrow.config import PolicyConfig, ScorerConfig
from windrow.engine.episode_scoring import verdict_of
from windrow.envs.scoring import Verdict
from windrow.errors import ScorerError
from windrow.records import Json, Score


class BaseScorer:
    """Made once for a run. `env`: the only environment whose episodes it judges; None: any."""

    after_commit: bool = False
    needs_answer: ClassVar[bool] = False  # an `answer` in every row
    needs_judge: bool = False  # a model called "judge": its own, or the run's
    needs_tokens: ClassVar[bool] = False  # the ids of what was sampled, which its models are asked to score
    asks_judge: bool = False  # it may ask one, if there is one
    only_reads: bool = False  # it changes nothing that it is shown: it needs no copy
    config: ScorerConfig | None = None  # as it was configured
    version: str | int | None = None
    source: str | None = None  # hash of its source, where it has no version

    def __init__(self, name: str, weight: float, settings: Mapping[str, Json]) -> None:
        self.name = name
        self.weight = weight
        self.settings = settings
        self.env: str | None = None
        self.asks_judge = self.asks_judge or self.needs_judge

    def models(self) -> Mapping[str, PolicyConfig]:
        """The models that it asks itself, by name; opened and closed with the grading. "judge" stands for the run's."""
        return {}

    @classmethod
    def identity(cls, settings: Mapping[str, Json]) -> Json:
        """The part of the settings that shapes verdicts, for the fingerprint; models are counted without it."""
        return settings

    def verdict(self, result: Score | Mapping[str, Json] | float | None) -> Verdict:
        """What a scorer returned, as it is recorded: NAME, or NAME.KEY for each of several."""
        name, weight = self.name, self.weight
        if isinstance(result, Mapping):
            result = Score(dict(result))
        elif result is None:
            raise ScorerError(f"scorer {name!r} returned None; expected a number, a dict or a Score")
        elif not isinstance(result, Score):
            result = Score(result)
        if isinstance(result.value, dict):
            if not result.value:
                raise ScorerError(f"scorer {name!r} returned an empty dict; expected at least one score")
            named = {f"{name}.{key}": _pair(value, weight) for key, value in result.value.items()}
            result = msgspec.structs.replace(result, value=named)
        return verdict_of(result, name=name, weight=weight, scorer=name)


def _pair(value: Json, weight: float) -> tuple[float, float]:
    """A score alone has the scorer's weight; (value, weight) has its own."""
    return (value[0], value[1] * weight) if isinstance(value, tuple) and len(value) == 2 else (value, weight)
