"""The models that scorers ask: their own, and the run's judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from windrow.config import RunConfig
from windrow.engine.components import make_model
from windrow.engine.models import Model
from windrow.envs.scoring import AnyScorer
from windrow.errors import UsageError
from windrow.policies import Policy
from windrow.util.redaction import Redactor

JUDGE = "judge"


def scorer_models(
    scorers: Sequence[AnyScorer],
    run: RunConfig,
    redactor: Redactor,
    overrides: Mapping[str, Policy] | None = None,
) -> dict[str, dict[str, Model]]:
    """The models that each scorer asks, by scorer and name: its own, and the run's judge under the name "judge".

    A judge among the `overrides` takes the place of the run's.
    """
    models: dict[bytes, Model] = {}  # by configuration: scorers share models
    judge = (overrides or {}).get(JUDGE)
    by_scorer: dict[str, dict[str, Model]] = {}
    for scorer in scorers:
        configs = dict(scorer.models())
        if scorer.asks_judge and JUDGE not in configs and (run.judge.model or judge is not None):
            configs[JUDGE] = run.judge
        if scorer.needs_judge and JUDGE not in configs:
            raise UsageError(
                f"scorer {scorer.name!r} asks a judge: give --judge MODEL with --judge-base-url URL, or --judge local"
            )
        for name, config in configs.items():
            key = msgspec.json.encode(config)
            if key not in models:
                instead = judge if config is run.judge else None
                where = (
                    "--judge (its address is --judge-base-url)"
                    if config is run.judge
                    else f"the model {name!r} of scorer {scorer.name!r}"
                )
                models[key] = make_model(config, where, redactor, run.prices, instead)
            by_scorer.setdefault(scorer.name, {})[name] = models[key]
            _check_scores_ids(scorer, models[key].policy)
    return by_scorer


def _check_scores_ids(scorer: AnyScorer, policy: Policy) -> None:
    if getattr(scorer, "needs_tokens", False) and not policy.scores_ids:
        raise UsageError(
            f"scorer {scorer.name!r}: {policy.model!r} cannot be asked how likely given ids are; a model at vLLM, SGLang "
            f"or llama.cpp can, and local"
        )
