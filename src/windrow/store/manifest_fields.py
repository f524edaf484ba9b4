"""The types of what readers take from the free parts of run.json: `config`, and what the fingerprints are `of`.

These parts hold whatever a version of Windrow had to say, and fields that are not listed here may be anything. A file with
another type in a listed field is damaged, and `read_manifest` says which field it is.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from windrow.records import Json

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Object = dict[str, Json]


class _Model(msgspec.Struct):
    model: str | None = None


class _Part(msgspec.Struct):
    """An environment or an agent."""

    name: str | None = None
    settings: Object | None = None


class _Tasks(msgspec.Struct):
    path: str | None = None


class _Config(msgspec.Struct):
    samples: Annotated[int, msgspec.Meta(ge=1, le=2**62)] = 1
    pass_: Number | None = msgspec.field(default=None, name="pass")
    env: _Part | None = None
    agent: _Part | None = None
    policy: _Model | None = None
    judge: _Model | None = None
    tasks: _Tasks | None = None
    limits: Object | None = None
    datasets: list[Object] | None = None


class _BehaviourOf(msgspec.Struct):
    env: _Part | None = None
    agent: _Part | None = None
    policy: _Model | None = None
    limits: dict[str, Number] | None = None
    limits_over_rows: list[str] | None = None
    sampling: Object | None = None
    sampling_over_rows: list[str] | None = None


class _ScorerEntry(msgspec.Struct):
    name: str
    weight: float = 1.0
    settings: Object | None = None
    env: str | None = None
    unit: str | None = None
    models: Object | None = None


class _GradingOf(msgspec.Struct):
    env: str | None = None
    scorers: list[_ScorerEntry] | None = None


class _Behaviour(msgspec.Struct):
    of: _BehaviourOf


class _Grading(msgspec.Struct):
    of: _GradingOf


class _Fields(msgspec.Struct):
    config: _Config
    behaviour: _Behaviour
    grading: _Grading | None
    generations: list[_Grading] = []


check_fields = msgspec.json.Decoder(_Fields).decode
