"""From a configuration to everything a run needs, checked: tasks, policy, environment, scorers, fingerprints.

Nothing is written and nothing is sent here: whatever can be refused is refused before the first request.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from windrow.agents import Agent, find_agent
from windrow.collecting.ranks import divided, note, rank_of
from windrow.collecting.rows import (
    Opened,
    Survey,
    as_numbered,
    as_played,
    names_env,
    open_rows,
    repeated,
    scan_rows,
)
from windrow.config import (
    LimitsConfig,
    LoadedConfig,
    RunConfig,
    as_tree,
    expand,
    services_at,
)
from windrow.engine.adaptive_limit import MOST
from windrow.engine.components import (
    Components,
    Overrides,
    make,
    make_context,
)
from windrow.engine.context import RunContext
from windrow.envs import BaseEnv, Match, find_env
from windrow.envs.scoring import AnyScorer
from windrow.envs.seating import own_settings
from windrow.errors import UsageError
from windrow.grading.run_scorers import (
    RunScorers,
    after_commit_scorers,
    answer_scorer,
    env_group_scorers,
    env_scorers,
    grading_fingerprint,
    named_scorers,
    scorer_config,
    unused_settings_notes,
)
from windrow.grading.scorer_models import scorer_models
from windrow.identity import fingerprint, source_hash
from windrow.policies import Policy, check_sampling
from windrow.policies.capture import LEVELS
from windrow.records import Json
from windrow.registry import name_of
from windrow.services import Service, addresses, plan_services
from windrow.store.run_directory import Fingerprint, Manifest
from windrow.store.run_names import RUNS, run_at, run_name, runs_called
from windrow.store.scan_index import ScanIndex
from windrow.tasks.row_problems import list_problems
from windrow.tasks.sampling import Draw
from windrow.tasks.scan import Selection, Source
from windrow.tasks.selection import Chooser, Chosen
from windrow.tasks.sharding import Rank
from windrow.tools import Tool
from windrow.trackers.names import parse_track
from windrow.util.redaction import Redactor
from windrow.workers.spec import WorkerSpec

DEFAULT_CONCURRENCY = 64


class ResolvedRun(msgspec.Struct, frozen=True, kw_only=True):
    loaded: LoadedConfig
    source: Source
    scan_index: ScanIndex | None  # of the source, to be kept beside the run
    chooser: Chooser
    chosen: Chosen
    context: RunContext
    judging: RunScorers
    behaviour: Fingerprint
    grading: Fingerprint | None
    code: dict[str, str]
    redactor: Redactor
    notes: tuple[str, ...]
    concurrency: int
    services: tuple[Service, ...] = ()
    matches: bool = False  # whether some episodes have several seats
    called: frozenset[str] = frozenset()  # the names under which the agent plays, where the rows give them
    rank: Rank | None = None  # which of the tasks are for others

    @property
    def run(self) -> RunConfig:
        """What this call keeps to; of what ranks share, its part. `loaded.run` has the whole."""
        return divided(self.loaded.run, self.rank)

    @property
    def tasks(self) -> Selection:
        return self.chosen.tasks

    @property
    def draw(self) -> Draw | None:
        return self.chosen.draw

    def continuing(self, before: Manifest | None) -> ResolvedRun:
        """With the tasks that this pass of the run was begun with, if they were chosen by what may have changed since."""
        if self.chosen.draw is None or before is None:
            return self
        return msgspec.structs.replace(self, chosen=self.chooser.choose(self.source, before))

    @property
    def worker_spec(self) -> WorkerSpec:
        """This run's world in words, for other processes."""
        return WorkerSpec(
            run=self.run,
            origins=self.loaded.origins,
            scorers=[(scorer_config(scorer), scorer.env) for scorer in self.judging.scorers],
            behaviour=self.behaviour.hash,
            grading=self.judging.fingerprint,
            addresses=addresses(self.services),
        )

    @property
    def out(self) -> Path:
        return self.out_of(self.rank.number if self.rank is not None else 0)

    def out_of(self, rank: int) -> Path:
        """A rank's run directory: what `out` says, else runs/<source>[-<split>]-<model>-<8 hex of the fingerprint>."""
        if self.run.out:
            return run_at(expand(self.run.out, where="out"), rank)
        name = run_name(self.source.name, self.source.split, self.context.policy.model)
        return RUNS / f"{name}-{self.behaviour.hash[:8]}"


def resolve(loaded: LoadedConfig, overrides: Overrides | None = None) -> ResolvedRun:
    for text in loaded.run.track:
        parse_track(text)
    redactor = Redactor()
    services = plan_services(loaded.run, redactor)
    with services_at(addresses(services)):
        return _prepare(loaded, overrides or Overrides(), redactor, services)


def _prepare(
    loaded: LoadedConfig, overrides: Overrides, redactor: Redactor, services: tuple[Service, ...]
) -> ResolvedRun:
    rank = rank_of(loaded)
    loaded = repeated(loaded, overrides)
    opened = open_rows(loaded, overrides)
    loaded = as_played(loaded, overrides, opened)
    run = divided(loaded.run, rank)
    components = make(msgspec.structs.replace(loaded, run=run), overrides, redactor)
    survey = Survey(
        components,
        choose_scorer=run.scorers is None and not overrides.scorers,
        env_named=names_env(loaded, overrides),
    )
    chooser = Chooser(loaded)
    table = chooser.table if chooser.wanted else None
    scanned = scan_rows(loaded, opened, survey, table, _runs_before(run, opened, components, rank))
    source = scanned.source
    loaded, of_rows = as_numbered(loaded, opened.rows, components)
    _check_policy(loaded, components.policy, source)
    _check_capture(run, components)
    scorers, notes = _scorers(run, overrides, components, survey)
    late = after_commit_scorers(scorers)
    if late and (run.capture or components.env.capture) == "none":
        raise UsageError(
            f"--capture none: scorer {late[0]!r} judges after the commit and would find no messages"
        )
    needy = next((scorer.name for scorer in scorers if getattr(scorer, "needs_tokens", False)), None)
    if needy is not None and components.capture != "tokens":
        raise UsageError(f"scorer {needy!r} needs the ids of what was sampled: give --capture tokens")
    if components.functions or run.tools:
        _check_tools_are_used(components)
    behaviour = _behaviour(loaded, components, source)
    models = scorer_models(scorers, run, redactor, overrides.models)
    grading = grading_fingerprint(scorers, models)
    judging = RunScorers(scorers=scorers, models=models, fingerprint=grading.hash if grading else None)
    concurrency = _concurrency(run, components.policy, rank)
    _check_limited(run, components, survey)
    _check_workers(run, overrides, concurrency)
    chosen = chooser.choose(source)
    count = len(chosen.tasks)
    of_ranks = (note(rank, loaded, len(rank.positions(count)), count),) if rank else ()
    return ResolvedRun(
        loaded=loaded,
        source=source,
        scan_index=scanned.index,
        chooser=chooser,
        chosen=chosen,
        context=make_context(
            components,
            loaded,
            redactor,
            behaviour=behaviour.hash,
            scorers=scorers,
            grading=judging.fingerprint,
        ),
        judging=judging,
        behaviour=behaviour,
        grading=grading,
        code=_code(components.env, components.agent, scorers, components.functions),
        redactor=redactor,
        notes=(*chosen.notes, *of_ranks, *of_rows, *notes),
        concurrency=concurrency,
        services=services,
        matches=any(issubclass(env, Match) for env in survey.envs),
        called=frozenset(survey.called),
        rank=rank,
    )


def _check_limited(run: RunConfig, components: Components, survey: Survey) -> None:
    """Refuse a limit that would never hold: of an environment or an agent that there is not."""
    kinds: tuple[tuple[str, Mapping[str, int], type, Callable[[str], type]], ...] = (
        ("--env-concurrency", run.env_concurrency, components.env, find_env),
        ("--agent-concurrency", run.agent_concurrency, components.agent, find_agent),
    )
    for flag, limits, own, find in kinds:
        for name in limits.keys() - {name_of(own)}:
            if own is components.agent and survey.called:
                if name not in survey.called:
                    known = ", ".join(sorted(survey.called))
                    raise UsageError(f"{flag} {name}: no row is for it (they are for: {known})")
                continue
            try:
                find(name)
            except UsageError as problem:
                raise UsageError(f"{flag} {name}: {problem}") from None


def _check_workers(run: RunConfig, overrides: Overrides, concurrency: int) -> None:
    """Refuse what several processes cannot share."""
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


def _check_tools_are_used(components: Components) -> None:
    env = name_of(components.env)
    if env in ("problem", "prompt") and name_of(components.agent) == "chat":
        raise UsageError(f"env {env!r} ends with the first reply, so tools would be of no use; --env tool")


def _concurrency(run: RunConfig, policy: Policy, rank: Rank | None) -> int:
    """How many episodes run at a time; the most there can be, where that is found out (`auto`).

    Ranks share them, but not what a policy of each rank's own bears.
    """
    if run.concurrency is None and policy.default_concurrency is not None:
        return policy.default_concurrency
    total = MOST if run.concurrency == "auto" else run.concurrency or DEFAULT_CONCURRENCY
    return total if rank is None else rank.places(total)


def _check_policy(loaded: LoadedConfig, policy: Policy, source: Source) -> None:
    """Whatever the policy would ignore is refused."""
    for name in as_tree(loaded.run.policy.sampling):
        where = loaded.origins.get(f"policy.sampling.{name}", "policy.sampling")
        check_sampling(policy, {name}, where=where)
    check_sampling(policy, source.row_sampling, where=f"'sampling' in a row of {source.rows.name}")
    if loaded.run.seeds != "none":
        check_sampling(policy, {"seed"}, where=f"--seeds {loaded.run.seeds}")


def _check_capture(run: RunConfig, components: Components) -> None:
    """Refuse a level that the policy cannot be asked for."""
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


def _scorers(
    run: RunConfig, overrides: Overrides, components: Components, survey: Survey
) -> tuple[tuple[AnyScorer, ...], tuple[str, ...]]:
    """The scorers, and what to say about the choice."""
    notes: tuple[str, ...] = ()
    if run.scorers is None and not overrides.scorers:
        answered, notes = answer_scorer(
            survey.problem_rows, survey.all_numbers, survey.unanswered_problems, components.env
        )
        scorers = (*answered, *env_scorers(survey.envs, components))
    else:
        scorers = named_scorers(run.scorers or (), overrides.scorers, components.env)
        notes = unused_settings_notes(components)
        named = next((scorer.name for scorer in scorers if getattr(scorer, "needs_answer", False)), None)
        if survey.unanswered and named is not None:
            raise UsageError(
                f"scorer {named!r} needs an 'answer' in every row. {list_problems(survey.unanswered)}"
            )
    return (*scorers, *env_group_scorers(survey.envs, components)), notes


def _behaviour(loaded: LoadedConfig, components: Components, source: Source) -> Fingerprint:
    """What shapes the rollouts: nothing volatile (URL, key, path, concurrency, seconds)."""
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


def _code(
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
    return {name: found for name, found in hashes.items() if found is not None}


def _runs_before(run: RunConfig, opened: Opened, components: Components, rank: Rank | None) -> list[Path]:
    """The runs that may have kept what a pass over the same rows has found; the fingerprint is not known yet."""
    if run.out:
        return [run_at(expand(run.out, where="out"), rank.number if rank is not None else 0)]
    return runs_called(run_name(opened.name, opened.split, components.policy.model))
