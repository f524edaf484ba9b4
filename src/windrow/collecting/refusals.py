"""Refusals: settings that contradict each other, or that the run would ignore, are refused before anything is sent.

Each function looks at one combination and raises a `UsageError` that says what to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from windrow.agents import find_agent
from windrow.collecting.rows import RowSurvey
from windrow.config import LoadedConfig, RunConfig, as_tree
from windrow.engine.components import Components, Overrides
from windrow.envs import find_env
from windrow.envs.scoring import AnyScorer
from windrow.errors import UsageError
from windrow.grading.run_scorers import after_commit_scorers
from windrow.policies import Policy, check_extra, check_sampling
from windrow.policies.capture import LEVELS
from windrow.registry import name_of
from windrow.tasks.scan import Source


def refuse_unusable_settings(
    loaded: LoadedConfig,
    run: RunConfig,
    overrides: Overrides,
    components: Components,
    survey: RowSurvey,
    *,
    concurrency: int,
) -> None:
    """`loaded` has the whole configuration, `run` the part of this rank."""
    _refuse_ignored_sampling(loaded, components.policy, survey.source)
    _refuse_capture(run, components)
    if components.functions or run.tools:
        _refuse_unused_tools(components)
    _refuse_unknown_limits(run, components, survey)
    _refuse_workers(run, overrides, concurrency)


def refuse_unusable_scorers(run: RunConfig, components: Components, scorers: tuple[AnyScorer, ...]) -> None:
    after_commit = after_commit_scorers(scorers)
    if after_commit and (run.capture or components.env.capture) == "none":
        raise UsageError(
            f"--capture none: scorer {after_commit[0]!r} judges after the commit and would find no messages"
        )
    needs_tokens = next((scorer.name for scorer in scorers if getattr(scorer, "needs_tokens", False)), None)
    if needs_tokens is not None and components.capture != "tokens":
        raise UsageError(f"scorer {needs_tokens!r} needs the ids of what was sampled: give --capture tokens")


def _refuse_unknown_limits(run: RunConfig, components: Components, survey: RowSurvey) -> None:
    """A limit on an environment or an agent that does not take part would never hold."""
    kinds: tuple[tuple[str, Mapping[str, int], type, Callable[[str], type]], ...] = (
        ("--env-concurrency", run.env_concurrency, components.env, find_env),
        ("--agent-concurrency", run.agent_concurrency, components.agent, find_agent),
    )
    for flag, limits, own, find in kinds:
        for name in limits.keys() - {name_of(own)}:
            if own is components.agent and survey.agent_names:
                if name not in survey.agent_names:
                    known = ", ".join(sorted(survey.agent_names))
                    raise UsageError(f"{flag} {name}: no row is for it (they are for: {known})")
                continue
            try:
                find(name)
            except UsageError as problem:
                raise UsageError(f"{flag} {name}: {problem}") from None


def _refuse_workers(run: RunConfig, overrides: Overrides, concurrency: int) -> None:
    """Several processes cannot share objects, and each needs an episode to run."""
    if run.workers == 1:
        return
    if objects := overrides.objects():
        raise UsageError(
            f"workers={run.workers}: {objects[0]} was given as an object, which other processes cannot have; "
            f"name it as module:name"
        )
    if run.workers > concurrency:
        raise UsageError(
            f"--workers {run.workers}: with --concurrency {concurrency} some would have nothing to do"
        )


def _refuse_unused_tools(components: Components) -> None:
    env = name_of(components.env)
    if env in ("problem", "prompt") and name_of(components.agent) == "chat":
        raise UsageError(f"env {env!r} ends with the first reply, so tools would be of no use; --env tool")


def _refuse_ignored_sampling(loaded: LoadedConfig, policy: Policy, source: Source) -> None:
    """The policy would ignore a sampling parameter that it does not know."""
    for name in as_tree(loaded.run.policy.sampling):
        where = loaded.origins.get(f"policy.sampling.{name}", "policy.sampling")
        check_sampling(policy, {name}, where=where)
    where = loaded.origins.get("policy.sampling.extra", "policy.sampling")
    check_extra(policy, loaded.run.policy.sampling.extra, where=where)
    check_sampling(policy, source.row_sampling, where=f"'sampling' in a row of {source.rows.name}")
    if loaded.run.seeds != "none":
        check_sampling(policy, {"seed"}, where=f"--seeds {loaded.run.seeds}")


def _refuse_capture(run: RunConfig, components: Components) -> None:
    """The policy cannot give what the capture level asks for."""
    level, policy = run.capture or components.env.capture, components.policy
    if level is not None and level not in policy.captures:
        can = ", ".join(name for name in LEVELS if name in policy.captures)
        raise UsageError(f"--capture {level}: policy {policy.name!r} can be captured as {can}")
    if run.top_logprobs and not policy.gives_top_logprobs:
        raise UsageError(f"--top-logprobs {run.top_logprobs}: policy {policy.name!r} does not give them")
    if run.top_logprobs and run.capture in ("none", "text"):
        raise UsageError(
            f"--top-logprobs {run.top_logprobs}: --capture {run.capture} keeps none; "
            f"leave it out, or say logprobs or tokens"
        )
