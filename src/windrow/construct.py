"""From a configuration to a world: the policy, the environment, the agent, the tools and the models that it names.

A `Recipe` has all that another process needs to make the same world again: names and numbers, no objects, no secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from windrow.agents import Agent, AgentFunction, as_agent, find_agent
from windrow.config import LoadedConfig, PolicyConfig, Price, RunConfig, ScorerConfig, as_tree, expand
from windrow.engine.world import Model, Scorer, World
from windrow.envs import Env, find_env
from windrow.errors import UsageError
from windrow.grade.scorers import make_scorer
from windrow.policies import Policy, check_sampling, make_policy
from windrow.policies.toolcalls.policy import with_tool_calls
from windrow.records import Json
from windrow.secrets import Redactor
from windrow.tasks.prompts import PromptTemplate, read_template
from windrow.tools import Tool
from windrow.tools.configured import make_toolbox, named_tools
from windrow.tools.toolbox import Toolbox


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What a program gives as objects rather than by name; each takes the place of the configuration's."""

    rows: Iterable[Mapping[str, Json]] | None = None
    policy: Policy | None = None
    models: Mapping[str, Policy] | None = None
    env: type[Env] | None = None
    agent: type[Agent] | AgentFunction | None = None
    scorers: Sequence[Callable[..., Any]] = ()
    tools: Sequence[Tool] = ()

    def objects(self) -> list[str]:
        """What was given as an object and has no name that another process could find it by."""
        given = ("policy", "models", "env", "agent", "scorers", "tools")
        return [name for name in given if getattr(self, name)]


class Judging(msgspec.Struct, frozen=True, kw_only=True):
    """How rollouts are judged: the scorers, the only environment they are for (None: any), the fingerprint."""

    scorers: tuple[Scorer, ...]
    env: str | None
    fingerprint: str | None


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration names, made and each checked by itself."""

    policy: Policy
    env: type[Env]
    agent: type[Agent]
    env_settings: dict[str, Json]
    agent_settings: dict[str, Json]
    models: dict[str, Model]
    prompt: PromptTemplate | None
    sampling: dict[str, Json]
    functions: tuple[Tool, ...]
    toolbox: Toolbox


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A world in words; `scorers` are those of the line itself and after it, also where the configuration left them open."""

    run: RunConfig
    origins: dict[str, str]
    scorers: list[ScorerConfig]
    scorers_env: str | None
    behaviour: str
    grading: str | None

    def loaded(self) -> LoadedConfig:
        return LoadedConfig(self.run, self.origins)


def make(loaded: LoadedConfig, parts: Parts, redactor: Redactor) -> Made:
    run = loaded.run
    policy = with_tool_calls(parts.policy or make_policy(loaded, redactor), run.policy.tool_calls)
    env = parts.env or find_env(run.env.name)
    agent = as_agent(parts.agent, "given") if parts.agent else find_agent(run.agent.name)
    policy.wanted_capture = run.capture or env.capture or policy.default_capture
    env_settings = _checked_settings("env", env, run.env.settings)
    agent_settings = _checked_settings("agent", agent, run.agent.settings)
    functions = (*named_tools(run.tools), *parts.tools)
    return Made(
        policy=policy,
        env=env,
        agent=agent,
        env_settings=env_settings,
        agent_settings=agent_settings,
        models=_models(env, env_settings, parts, redactor),
        prompt=read_template(expand(run.prompt, where="prompt")) if run.prompt else None,
        sampling={**policy.default_sampling, **as_tree(run.policy.sampling)},
        functions=functions,
        toolbox=make_toolbox(run, functions, redactor),
    )


def make_world(made: Made, loaded: LoadedConfig, *, behaviour: str, judging: Judging) -> World:
    run = loaded.run
    return World(
        policy=made.policy,
        models=made.models,
        env=made.env,
        agent=made.agent,
        env_settings=made.env_settings,
        agent_settings=made.agent_settings,
        scorers=judging.scorers,
        scorers_env=judging.env,
        toolbox=made.toolbox,
        prompt=made.prompt,
        sampling=made.sampling,
        forced_sampling=frozenset(loaded.forced_sampling),
        seeds=run.seeds,
        limits=run.limits,
        call_retries=run.policy.call_retries,
        backoff_s=run.policy.backoff_s,
        behaviour=behaviour,
        grading=judging.fingerprint,
        capture=run.capture,
        price=_price(run, made.policy),
    )


def world_of(recipe: Recipe, redactor: Redactor) -> World:
    """The world of a recipe, in another process than the one that wrote it."""
    loaded = recipe.loaded()
    made = make(loaded, Parts(), redactor)
    scorers = tuple(make_scorer(config) for config in recipe.scorers)
    judging = Judging(scorers=scorers, env=recipe.scorers_env, fingerprint=recipe.grading)
    return make_world(made, loaded, behaviour=recipe.behaviour, judging=judging)


def _price(run: RunConfig, policy: Policy) -> Price | None:
    """What the policy's tokens cost: the entry of `prices` that names it, else the first whose pattern fits."""
    exact = run.prices.get(policy.model)
    found = exact or next((run.prices[name] for name in run.prices if fnmatchcase(policy.model, name)), None)
    if found is None and run.budget.cost is not None:
        raise UsageError(
            f"--budget-cost needs the price of {policy.model!r}: set it in the configuration, such as\n"
            f"prices: {{{policy.model!r}: {{prompt: 2.5, completion: 10}}}}   # for a million tokens"
        )
    return found


def _models(env: type[Env], settings: dict[str, Json], parts: Parts, redactor: Redactor) -> dict[str, Model]:
    """The environment's own models, made as the policy is; `parts.models` take their places by name."""
    given = parts.models or {}
    made: dict[str, Model] = {}
    for name, config in env.models(settings).items():
        where = f"env.settings: model {name!r}"
        set_here = {f"policy.{key}": where for key in _changed(config)}
        policy = given.get(name) or make_policy(LoadedConfig(RunConfig(policy=config), set_here), redactor)
        sampling = {**policy.default_sampling, **as_tree(config.sampling)}
        check_sampling(policy, set(sampling), where=where)
        if config.tool_calls != PolicyConfig().tool_calls:
            raise UsageError(f"{where} is given no tools and would ignore tool_calls; leave it out")
        made[name] = Model(policy, sampling, config.call_retries, config.backoff_s)
    return made


def _changed(config: PolicyConfig) -> list[str]:
    return [key for key in config.__struct_fields__ if getattr(config, key) != getattr(PolicyConfig(), key)]


def _checked_settings(kind: str, part: type[Env] | type[Agent], settings: dict[str, Json]) -> dict[str, Json]:
    expanded: dict[str, Json] = expand(settings, where=f"{kind}.settings")
    try:
        part.check_settings(expanded)
    except ValueError as problem:
        raise UsageError(f"{kind}.settings: {problem}") from None
    return expanded
