"""Who judges again: the scorers that a rescore names, or those of the active generation as the run has configured them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from windrow.config import LoadedConfig, ScorerConfig, load_config
from windrow.envs import Env, find_env
from windrow.envs.base import BaseEnv
from windrow.envs.scoring import AnyScorer
from windrow.errors import UsageError
from windrow.grading.run_scorers import each_once
from windrow.grading.scorers import ENV_SCORER, configured_scorer
from windrow.grading.user_functions import scorer_of
from windrow.store.manifest import Manifest


def loaded_again(
    manifest: Manifest, files: Sequence[str | Path], options: Mapping[str, Any], sets: Sequence[str]
) -> LoadedConfig:
    """The run's configuration, with what this call says laid over it; budgets are a call's own."""
    base = {key: value for key, value in manifest.config.items() if key != "budget"}
    if options.get("judge") is not None:
        base.pop("judge", None)
    return load_config(files, options, sets, base=base)


def scorers_again(
    manifest: Manifest, loaded: LoadedConfig, functions: Sequence[Callable[..., Any]], *, anew: bool
) -> tuple[AnyScorer, ...]:
    """The scorers that are named `anew`, and what the environment scores itself; or those of the active generation."""
    of = manifest.grading.of if manifest.grading else {}
    own = _own_env(loaded)
    named = [_where_played(config, loaded) for config in loaded.run.scorers or ()]
    entries = {entry["name"]: entry for entry in of.get("scorers") or ()}
    envs = {name: entry.get("env") or of.get("env") for name, entry in entries.items()}
    # a scorer that the run has stays that one
    components = [configured_scorer(config, envs.get(config.name), own) for config in named] if anew else []
    for name, entry in entries.items():
        if not anew or (name == ENV_SCORER and all(scorer.name != ENV_SCORER for scorer in components)):
            brought = (_where_played(config, loaded) for config in own.scorers(loaded.run.env.settings))
            configured = (*named, *brought) if not anew else ()
            components.append(_again(entry, envs[name], configured, own))
    components += map(scorer_of, functions)
    return each_once(components)


def _where_played(config: ScorerConfig, loaded: LoadedConfig) -> ScorerConfig:
    """A scorer that belongs to the run's agent asks the server that the agent had, unless it says another."""
    agent = loaded.run.agent
    head = agent.settings.get("head")
    if config.name != agent.name or config.settings.keys() & {"head", "url"}:
        return config
    if not isinstance(head, str) or "${" in head:  # of a service, which is not running now
        return config
    return msgspec.structs.replace(config, settings={**config.settings, "head": head})


def _again(
    entry: Mapping[str, Any], env: str | None, configured: Iterable[ScorerConfig], own: type[BaseEnv]
) -> AnyScorer:
    """A scorer of the active generation: as the run has configured it (with where its judges are served, say), where
    that is the same scorer."""
    weight, settings = entry.get("weight", 1.0), entry.get("settings") or {}
    for config in configured:
        if config.name == entry["name"] and config.weight == weight:
            scorer = configured_scorer(config, env, own)
            if getattr(scorer, "identity", dict)(config.settings) == settings:
                return scorer
    try:
        return configured_scorer(ScorerConfig(name=entry["name"], weight=weight, settings=settings), env, own)
    except UsageError as problem:
        raise UsageError(
            f"{problem}\nThe run is graded by it: name its scorers with --scorer, or in Python windrow.rescore(run, scorers=[…])"
        ) from None


def _own_env(loaded: LoadedConfig) -> type[BaseEnv]:
    """The run's environment, if it can still be found; only its own group scores need it."""
    try:
        return find_env(loaded.run.env.name)
    except UsageError:
        return Env
