"""The identity of a run: the behaviour fingerprint, and hashes of user code that names no version."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from windrow.agents import Agent
from windrow.config import LimitsConfig, LoadedConfig
from windrow.engine.components import Components
from windrow.envs import BaseEnv
from windrow.envs.scoring import AnyScorer
from windrow.envs.seating import own_settings
from windrow.identity import fingerprint, source_hash
from windrow.records import Json
from windrow.registry import name_of
from windrow.store.manifest import Fingerprint
from windrow.tasks.scan import Source
from windrow.tools import Tool


def behaviour_fingerprint(loaded: LoadedConfig, components: Components, source: Source) -> Fingerprint:
    """Everything that shapes the rollouts, and nothing volatile (URL, key, path, concurrency, seconds)."""
    env, agent = components.env, components.agent
    run = loaded.run
    own = own_settings(env, run.env.settings)
    limits = {"max_turns": run.limits.max_turns}
    for name in ("max_episode_tokens", "max_tool_calls"):
        if (value := getattr(run.limits, name)) is not None:
            limits[name] = value
    for name in ("max_parse_errors", "max_tool_result_chars"):
        if (value := getattr(run.limits, name)) != getattr(LimitsConfig(), name):
            limits[name] = value
    of: dict[str, Json] = {
        "policy": components.policy.identity(),
        "sampling": components.sampling,
        "limits": limits,
        "env": {"name": name_of(env), "settings": env.identity(own), "version": env.version},
        "agent": {
            "name": name_of(agent),
            "settings": agent.identity(run.agent.settings),
            "version": agent.version,
        },
    }
    if components.seating.seat_shift:
        of["seat_shift"] = components.seating.seat_shift
    of.update(components.toolbox.identity())
    if components.prompt is not None:
        of["prompt"] = components.prompt.source
    if components.models:
        of["models"] = {
            name: {"policy": model.policy.identity(), "sampling": model.sampling}
            for name, model in components.models.items()
        }
    if run.seeds != "none":
        of["seeds"] = run.seeds
    over_rows = sorted(loaded.forced_sampling & source.row_sampling)
    if over_rows:
        of["sampling_over_rows"] = over_rows
    if limits_over_rows := sorted(loaded.forced_limits & source.row_limits):
        of["limits_over_rows"] = limits_over_rows
    return Fingerprint(fingerprint(of), of)


def code_hashes(
    env: type[BaseEnv], agent: type[Agent], scorers: Sequence[AnyScorer], functions: Sequence[Tool]
) -> dict[str, str]:
    """Source hashes of user code that carries no version of its own: a change in it is only warned of."""
    hashes: dict[str, str | None] = {}
    for kind, part in (("env", env), ("agent", agent)):
        if part.version is None:
            hashes[f"{kind} {name_of(part)}"] = source_hash(part)
    for scorer in scorers:
        if getattr(scorer, "version", None) is None:
            hashes[f"scorer {scorer.name}"] = getattr(scorer, "source", None)
    for tool in functions:
        hashes[f"tool {tool.name}"] = source_hash(inspect.unwrap(tool.call))
    return {name: digest for name, digest in hashes.items() if digest is not None}
