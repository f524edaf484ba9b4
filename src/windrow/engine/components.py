"""The components of a run, made from its configuration: policy, environment, agent, tools, models.

Scorers are made in `grading`, above this package, and handed to the `RunContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from windrow.agents import Agent, AgentFunction, as_agent, find_agent
from windrow.config import (
    LoadedConfig,
    PolicyConfig,
    Price,
    RunConfig,
    as_tree,
    expand,
)
from windrow.engine.models import Model
from windrow.envs import BaseEnv, find_env
from windrow.envs.seating import Seating, opponent, own_settings, seating_of
from windrow.errors import UsageError
from windrow.policies import Policy, check_extra, check_sampling, make_policy
from windrow.policies.capture import capture_level
from windrow.policies.external import RemotePolicy
from windrow.policies.toolcalls.policy import with_tool_calls
from windrow.records import Capture, Json
from windrow.registry import name_of
from windrow.tasks.prompts import PromptTemplate, read_template
from windrow.tools import Tool
from windrow.tools.configured import make_toolbox, named_tools
from windrow.tools.toolbox import Toolbox
from windrow.util.byte_budget import REPLIES
from windrow.util.redaction import Redactor


class Overrides(msgspec.Struct, frozen=True, kw_only=True):
    """What a program gives as objects rather than by name; each replaces what the configuration names."""

    rows: Iterable[Mapping[str, Json]] | None = None
    policy: Policy | None = None
    models: Mapping[str, Policy] | None = None
    env: type[BaseEnv] | None = None
    agent: type[Agent] | AgentFunction | None = None
    scorers: Sequence[Callable[..., Any]] = ()
    tools: Sequence[Tool] = ()

    def objects(self) -> list[str]:
        """What was given as an object and has no name that another process could find it by."""
        given = ("policy", "models", "env", "agent", "scorers", "tools")
        return [name for name in given if getattr(self, name)]


class Components(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration names, made and each checked by itself."""

    policy: Policy
    env: type[BaseEnv]
    agent: type[Agent]
    env_settings: dict[str, Json]
    seating: Seating
    agent_settings: dict[str, Json]
    models: dict[str, Model]
    prompt: PromptTemplate | None
    sampling: dict[str, Json]
    functions: tuple[Tool, ...]
    toolbox: Toolbox
    capture: Capture  # in episodes of `env`
    price: Price | None  # of the policy's tokens


def make_components(
    loaded: LoadedConfig, overrides: Overrides, redactor: Redactor, *, env_name: str | None = None
) -> Components:
    """`env_name` is the environment that the rows imply, where the configuration names none."""
    run = loaded.run
    REPLIES.max_bytes = (
        run.limits.replies_in_flight_mb << 20
    )  # the process has one memory, whatever runs in it
    name = expand(run.agent.name, where="agent.name")
    agent = as_agent(overrides.agent, "given") if overrides.agent else find_agent(name)
    policy = _policy(loaded, overrides, agent, redactor)
    env = overrides.env or find_env(env_name or run.env.name)
    if agent.env is not None and name_of(env) != agent.env:
        raise UsageError(
            f"agent {name_of(agent)!r} plays in env {agent.env!r}, not in {name_of(env)!r}; give --env {agent.env}"
        )
    seating, env_settings = _seated(env, expand(run.env.settings, where="env.settings"))
    agent_settings = _checked_settings("agent", agent, expand(run.agent.settings, where="agent.settings"))
    functions = (*named_tools(run.tools), *overrides.tools)
    return Components(
        policy=policy,
        env=env,
        agent=agent,
        env_settings=env_settings,
        seating=seating,
        agent_settings=agent_settings,
        models=_models(env, env_settings, overrides, redactor, run.prices)
        | _opponents(seating, run, overrides, redactor),
        prompt=read_template(expand(run.prompt, where="prompt")) if run.prompt else None,
        sampling={**policy.default_sampling, **as_tree(run.policy.sampling)},
        functions=functions,
        toolbox=make_toolbox(run, functions, redactor),
        capture=capture_level(run.capture, env.capture or policy.default_capture, top=run.top_logprobs),
        price=_price(run, policy),
    )


def _policy(loaded: LoadedConfig, overrides: Overrides, agent: type[Agent], redactor: Redactor) -> Policy:
    """The policy of the run. It is never called where the agent plays by itself."""
    if not agent.external:
        return with_tool_calls(
            overrides.policy or make_policy(loaded, redactor), loaded.run.policy.tool_calls
        )
    ignored = next(filter(_is_ignored, loaded.origins), "policy" if overrides.policy else None)
    if ignored is not None:
        raise UsageError(
            f"{loaded.origins.get(ignored, ignored)}: agent {name_of(agent)!r} plays by itself, with a model of its own, and "
            f"would ignore {ignored}; leave it out"
        )
    return RemotePolicy()


def _is_ignored(key: str) -> bool:
    """Whether an agent that plays by itself would ignore this key of the configuration."""
    kept = ("policy.sampling", "policy.call_retries", "policy.backoff_s")
    if key == "policy" or any(key == name or key.startswith(f"{name}.") for name in kept):
        return False
    ours = (
        "policy.",
        "tools",
        "allow_tools",
        "deny_tools",
        "top_logprobs",
        "limits.max_",
        "limits.call_",
        "limits.tool_",
    )
    return key.startswith(ours)


def _price_of(prices: Mapping[str, Price], model: str) -> Price | None:
    """The entry that names the model, else the first whose pattern fits."""
    exact = prices.get(model)
    return exact or next((prices[name] for name in prices if fnmatchcase(model, name)), None)


def _price(run: RunConfig, policy: Policy) -> Price | None:
    """What the policy's tokens cost."""
    price = _price_of(run.prices, policy.model)
    if price is None and run.budget.cost is not None:
        raise UsageError(
            f"--budget-cost needs the price of {policy.model!r}: set it in the configuration, such as\n"
            f"prices: {{{policy.model!r}: {{prompt: 2.5, completion: 10}}}}   # for a million tokens"
        )
    return price


def _models(
    env: type[BaseEnv],
    settings: dict[str, Json],
    overrides: Overrides,
    redactor: Redactor,
    prices: Mapping[str, Price],
) -> dict[str, Model]:
    """The environment's own models, made as the policy is; `overrides.models` replace them by name."""
    given = overrides.models or {}
    models: dict[str, Model] = {}
    for name, config in env.models(settings).items():
        where = f"env.settings: model {name!r}"
        models[name] = make_model(config, where, redactor, prices, given.get(name))
    return models


def _opponents(
    seating: Seating, run: RunConfig, overrides: Overrides, redactor: Redactor
) -> dict[str, Model]:
    """The policies that play against this one. Unlike the environment's models they are given the game's tools."""
    models: dict[str, Model] = {}
    for number, config in seating.opponents.items():
        plain = msgspec.structs.replace(config, tool_calls=PolicyConfig().tool_calls)
        where = f"env.settings.opponents.{number}"
        given = (overrides.models or {}).get(opponent(number))
        model = make_model(plain, where, redactor, run.prices, given)
        policy = model.policy if given else with_tool_calls(model.policy, config.tool_calls)
        _price(run, policy)
        models[opponent(number)] = msgspec.structs.replace(
            model, policy=policy, capture=policy.default_capture
        )
    return models


def make_model(
    config: PolicyConfig,
    where: str,
    redactor: Redactor,
    prices: Mapping[str, Price],
    given: Policy | None = None,
) -> Model:
    """A model beside the policy; `given` replaces what the configuration names."""
    set_here = {f"policy.{key}": where for key in _changed(config)}
    try:
        policy = given or make_policy(LoadedConfig(RunConfig(policy=config), set_here), redactor)
    except UsageError as problem:  # which speaks of the policy's flags
        raise UsageError(f"{where}: {problem}") from None
    sampling = {**policy.default_sampling, **as_tree(config.sampling)}
    check_sampling(policy, set(sampling), where=where)
    check_extra(policy, config.sampling.extra, where=where)
    if config.tool_calls != PolicyConfig().tool_calls:
        raise UsageError(f"{where} is given no tools and would ignore tool_calls; leave it out")
    return Model(policy, sampling, config.call_retries, config.backoff_s, _price_of(prices, policy.model))


def _changed(config: PolicyConfig) -> list[str]:
    return [key for key in config.__struct_fields__ if getattr(config, key) != getattr(PolicyConfig(), key)]


def _seated(env: type[BaseEnv], settings: dict[str, Json]) -> tuple[Seating, dict[str, Json]]:
    """How a match is seated, and the environment's own settings, checked."""
    try:
        seating = seating_of(env, settings)
    except ValueError as problem:
        raise UsageError(f"env.settings: {problem}") from None
    return seating, _checked_settings("env", env, own_settings(env, settings))


def _checked_settings(
    kind: str, part: type[BaseEnv] | type[Agent], settings: dict[str, Json]
) -> dict[str, Json]:
    try:
        part.check_settings(settings)
    except ValueError as problem:
        raise UsageError(f"{kind}.settings: {problem}") from None
    return settings
