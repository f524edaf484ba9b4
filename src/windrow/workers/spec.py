"""The description of a run for a worker, and the run context that the worker makes from it.

A `WorkerSpec` has all that another process needs to make the same context: names and numbers, no objects, no secrets.
"""

from __future__ import annotations

import msgspec

from windrow.config import LoadedConfig, RunConfig, ScorerConfig, services_at
from windrow.engine.components import Overrides, make_components
from windrow.engine.context import RunContext
from windrow.grading.scorers import configured_scorer
from windrow.tasks.trust import RowTrust
from windrow.util.redaction import Redactor


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`scorers` are all scorers of the run, also those that the configuration left open, each with the only environment that it
    is for. `addresses` are those of the run's services, by name. `trust` is what rows may demand."""

    run: RunConfig
    origins: dict[str, str]
    scorers: list[tuple[ScorerConfig, str | None]]
    behaviour: str
    grading: str | None
    addresses: dict[str, str] = {}
    trust: RowTrust = RowTrust()

    def loaded(self) -> LoadedConfig:
        return LoadedConfig(self.run, self.origins)


def context_of(spec: WorkerSpec, redactor: Redactor) -> RunContext:
    """The run context of a spec, in another process than the one that wrote it."""
    loaded = spec.loaded()
    with services_at(spec.addresses):
        components = make_components(loaded, Overrides(), redactor)
        scorers = tuple(configured_scorer(config, env, components.env) for config, env in spec.scorers)
    return RunContext(
        components,
        loaded,
        scorers=scorers,
        behaviour=spec.behaviour,
        grading=spec.grading,
        redact=redactor.add,
        trust=spec.trust,
    )
