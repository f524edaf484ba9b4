"""The scorers of a rescore: those that it names, or those of the active generation as the run has configured them."""

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
from windrow.grading.run_scorers import check_names_differ
from windrow.grading.scorers import ENV_SCORER, configured_scorer, only_compares
from windrow.grading.user_functions import scorer_of
from windrow.records import Json
from windrow.store.manifest import Manifest
from windrow.store.trust import RunTrust

NUMBERS_ONLY = (
    "samples",
    "pass",
    "limits",
    "min_group",
    "judge_concurrency",
    "prices",
)  # name nothing to act on


def rescore_config(
    manifest: Manifest,
    trust: RunTrust,
    files: Sequence[str | Path],
    options: Mapping[str, Any],
    sets: Sequence[str],
) -> LoadedConfig:
    """The run's configuration, with that of this call laid over it. Budgets are those of this call alone.

    Of a foreign run only numbers are taken: whom to ask, with which key, and what to import comes from this call.
    """
    base = {key: value for key, value in manifest.config.items() if key != "budget"}
    if not trust.acts:
        base = {key: value for key, value in base.items() if key in NUMBERS_ONLY}
    if options.get("judge") is not None:
        base.pop("judge", None)
    return load_config(files, options, sets, base=base)


def rescore_scorers(
    manifest: Manifest,
    trust: RunTrust,
    loaded: LoadedConfig,
    functions: Sequence[Callable[..., Any]],
    *,
    anew: bool,
) -> tuple[AnyScorer, ...]:
    """If they are named `anew`, the scorers of the configuration, and the environment's own group scorer; else those of
    the active generation. The functions come after them."""
    of = manifest.grading.of if manifest.grading else {}
    if not trust.acts:
        of = _of_foreign_run(of, anew=anew)
    env = _run_env(loaded)
    named = [_with_agent_server(config, loaded) for config in loaded.run.scorers or ()]
    entries = {entry["name"]: entry for entry in of.get("scorers") or ()}
    env_names = {name: entry.get("env") or of.get("env") for name, entry in entries.items()}
    # a scorer that the run has already goes on judging the same environment's rollouts
    scorers = [configured_scorer(config, env_names.get(config.name), env) for config in named] if anew else []
    for name, entry in entries.items():
        if not anew or (name == ENV_SCORER and all(scorer.name != ENV_SCORER for scorer in scorers)):
            of_env = (_with_agent_server(config, loaded) for config in env.scorers(loaded.run.env.settings))
            configured = (*named, *of_env) if not anew else ()
            scorers.append(_same_scorer(entry, env_names[name], configured, env))
    scorers += map(scorer_of, functions)
    return check_names_differ(scorers)


def _of_foreign_run(of: Mapping[str, Json], *, anew: bool) -> dict[str, Json]:
    """The grading of a run that is not trusted, without the scorer that its environment is.

    UsageError if its scorers are to judge, and would import code or ask somebody.
    """
    entries = [entry for entry in of.get("scorers") or () if not anew or entry["name"] != ENV_SCORER]
    acting = [entry["name"] for entry in entries if not only_compares(entry["name"], entry.get("settings"))]
    if acting and not anew:
        raise UsageError(
            f"the run is foreign (it has no signature of yours), and its scorers run code or ask judges that run.json names: "
            f"{', '.join(map(ascii, acting))}. Name the scorers yourself with --scorer (and --judge), or, if you trust whoever "
            f"made the run, add --trust-run"
        )
    return {**of, "scorers": entries}


def _with_agent_server(config: ScorerConfig, loaded: LoadedConfig) -> ScorerConfig:
    """A scorer that belongs to the run's agent asks the agent's server, unless its settings name another."""
    agent = loaded.run.agent
    head = agent.settings.get("head")
    if config.name != agent.name or config.settings.keys() & {"head", "url"}:
        return config
    if not isinstance(head, str) or "${" in head:  # the address of a service, which is not running now
        return config
    return msgspec.structs.replace(config, settings={**config.settings, "head": head})


def _same_scorer(
    entry: Mapping[str, Any], env_name: str | None, configured: Iterable[ScorerConfig], run_env: type[BaseEnv]
) -> AnyScorer:
    """A scorer of the active generation. If the configuration has that very scorer, it is made from there: the
    configuration says, for example, where its judges are served."""
    weight, settings = entry.get("weight", 1.0), entry.get("settings") or {}
    for config in configured:
        if config.name == entry["name"] and config.weight == weight:
            scorer = configured_scorer(config, env_name, run_env)
            if getattr(scorer, "identity", dict)(config.settings) == settings:
                return scorer
    try:
        config = ScorerConfig(name=entry["name"], weight=weight, settings=settings)
        return configured_scorer(config, env_name, run_env)
    except UsageError as problem:
        raise UsageError(
            f"{problem}\nThe run is graded by it: name its scorers with --scorer, or in Python windrow.rescore(run, scorers=[…])"
        ) from None


def _run_env(loaded: LoadedConfig) -> type[BaseEnv]:
    """The run's environment, if it can still be found; only its own group scores need it."""
    try:
        return find_env(loaded.run.env.name)
    except UsageError:
        return Env
