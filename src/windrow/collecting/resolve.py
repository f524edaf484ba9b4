"""From a configuration to one resolved run: tasks, policy, environment, scorers, fingerprints, each checked.

`resolve` is a pipeline of plain steps. Nothing is written and nothing is sent: a call that can be refused is refused before
the first request.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from windrow.collecting.fingerprints import behaviour_fingerprint, code_hashes
from windrow.collecting.ranks import divided, note, rank_of
from windrow.collecting.refusals import refuse_unusable_scorers, refuse_unusable_settings
from windrow.collecting.rows import OpenedRows, RowSurvey, open_rows, settle_config, survey_rows
from windrow.config import LoadedConfig, RunConfig, expand, services_at
from windrow.engine.adaptive_limit import MOST_EPISODES
from windrow.engine.components import Components, Overrides, make_components
from windrow.engine.context import RunContext
from windrow.envs import BaseEnv, Match
from windrow.envs.scoring import AnyScorer
from windrow.errors import UsageError
from windrow.grading.run_scorers import (
    RunScorers,
    answer_scorer,
    env_group_scorers,
    env_scorers,
    grading_fingerprint,
    named_scorers,
    scorer_config,
    unused_settings_notes,
)
from windrow.grading.scorer_models import scorer_models
from windrow.policies import Policy
from windrow.registry import name_of
from windrow.services import Service, addresses, plan_services
from windrow.store.manifest import Fingerprint, Manifest
from windrow.store.run_names import RUNS, run_at, run_name, runs_called
from windrow.store.scan_index import ScanIndex
from windrow.tasks.row_problems import list_problems
from windrow.tasks.sampling import Draw
from windrow.tasks.scan import Selection, Source
from windrow.tasks.selection import SelectedTasks, TaskSelector
from windrow.tasks.sharding import Rank
from windrow.tasks.trust import Demand, row_trust
from windrow.trackers.names import parse_track
from windrow.util.redaction import Redactor
from windrow.workers.spec import WorkerSpec

DEFAULT_CONCURRENCY = 64


class ResolvedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run before its first request: everything that a call needs, checked. Nothing is open yet."""

    loaded: LoadedConfig  # the whole configuration, with what the rows imply
    run: RunConfig  # the same, with only this rank's share of concurrency, rates and budgets
    source: Source
    scan_index: ScanIndex | None  # what the pass over the source has found, to be kept in the run directory
    task_selector: TaskSelector
    selected: SelectedTasks
    context: RunContext
    run_scorers: RunScorers
    behaviour: Fingerprint
    grading: Fingerprint | None
    code: dict[str, str]
    redactor: Redactor
    notes: tuple[str, ...]
    concurrency: int
    services: tuple[Service, ...] = ()
    matches: bool = False  # whether some episodes have several seats
    agent_names: frozenset[str] = frozenset()  # under which the agent plays, where the rows give them
    allowed_demands: dict[Demand, str] = {}  # what rows demand beside data, and what allows it
    rank: Rank | None = None  # None where this call collects everything
    row_envs: frozenset[type[BaseEnv]] = frozenset()  # that the rows are played in

    @property
    def tasks(self) -> Selection:
        return self.selected.tasks

    @property
    def envs(self) -> dict[str, type[BaseEnv]]:
        """The environments of this call, by name."""
        return {name_of(env): env for env in (self.context.env, *self.row_envs)}

    @property
    def draw(self) -> Draw | None:
        return self.selected.draw

    def continuing(self, before: Manifest | None) -> ResolvedRun:
        """The same run with the tasks that it drew when it was begun: what they were drawn by may have changed since."""
        if self.selected.draw is None or before is None:
            return self
        return msgspec.structs.replace(self, selected=self.task_selector.select(self.source, before))

    @property
    def worker_spec(self) -> WorkerSpec:
        """The description from which another process can make the same run context."""
        return WorkerSpec(
            run=self.run,
            origins=self.loaded.origins,
            scorers=[(scorer_config(scorer), scorer.env) for scorer in self.run_scorers.scorers],
            behaviour=self.behaviour.hash,
            grading=self.run_scorers.fingerprint,
            addresses=addresses(self.services),
            trust=self.context.trust,
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
    """The run that a configuration describes. `overrides` are objects that replace what it names."""
    for text in loaded.run.track:
        parse_track(text)
    redactor = Redactor()
    services = plan_services(loaded.run, redactor)
    with services_at(addresses(services)):
        return _resolve(loaded, overrides or Overrides(), redactor, services)


def _resolve(
    loaded: LoadedConfig, overrides: Overrides, redactor: Redactor, services: tuple[Service, ...]
) -> ResolvedRun:
    rank = rank_of(loaded)
    rows = open_rows(loaded, overrides)
    share = msgspec.structs.replace(loaded, run=divided(loaded.run, rank))
    components = make_components(share, overrides, redactor, env_name=rows.env)
    trust = row_trust(loaded, rows.agents)
    task_selector = TaskSelector(loaded)
    survey = survey_rows(
        loaded,
        overrides,
        rows,
        components,
        trust,
        traits=task_selector.table if task_selector.wanted else None,
        earlier_runs=_earlier_runs(share.run, rows, components, rank),
    )
    settled, row_notes = settle_config(loaded, rows, survey, components)
    run = divided(settled.run, rank)
    most_tasks = min(len(survey.source), run.tasks.limit or len(survey.source))
    concurrency = _concurrency(run, components.policy, rank, slots=most_tasks * run.samples)
    refuse_unusable_settings(settled, run, overrides, components, survey, concurrency=concurrency)
    scorers, scorer_notes = _choose_scorers(run, overrides, components, survey)
    refuse_unusable_scorers(run, components, scorers)
    models = scorer_models(scorers, run, redactor, overrides.models)
    grading = grading_fingerprint(scorers, models)
    run_scorers = RunScorers(scorers=scorers, models=models, fingerprint=grading.hash if grading else None)
    behaviour = behaviour_fingerprint(settled, components, survey.source)
    selected = task_selector.select(survey.source)
    count = len(selected.tasks)
    rank_notes = (note(rank, settled, len(rank.positions(count)), count),) if rank else ()
    return ResolvedRun(
        loaded=settled,
        run=run,
        source=survey.source,
        scan_index=survey.index,
        task_selector=task_selector,
        selected=selected,
        context=RunContext(
            components,
            settled,
            scorers=scorers,
            behaviour=behaviour.hash,
            grading=run_scorers.fingerprint,
            redact=redactor.add,
            trust=trust,
        ),
        run_scorers=run_scorers,
        behaviour=behaviour,
        grading=grading,
        code=code_hashes(components.env, components.agent, scorers, components.functions),
        redactor=redactor,
        notes=(*selected.notes, *rank_notes, *row_notes, *scorer_notes),
        concurrency=concurrency,
        services=services,
        matches=any(issubclass(env, Match) for env in survey.envs),
        agent_names=survey.agent_names,
        allowed_demands=survey.allowed,
        rank=rank,
        row_envs=survey.envs,
    )


def _concurrency(run: RunConfig, policy: Policy, rank: Rank | None, slots: int) -> int:
    """How many episodes run at a time; with `auto`, how many may run at most; `unlimited` is all `slots`.

    Ranks share the number, but not the default of a policy that each rank has for itself.
    """
    if run.concurrency is None and policy.default_concurrency is not None:
        return policy.default_concurrency
    if run.concurrency == "unlimited":
        return slots
    total = MOST_EPISODES if run.concurrency == "auto" else run.concurrency or DEFAULT_CONCURRENCY
    return total if rank is None else rank.places(total)


def _choose_scorers(
    run: RunConfig, overrides: Overrides, components: Components, survey: RowSurvey
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


def _earlier_runs(run: RunConfig, rows: OpenedRows, components: Components, rank: Rank | None) -> list[Path]:
    """The runs whose index of the same rows may save a pass over them; the fingerprint is not known yet."""
    if run.out:
        return [run_at(expand(run.out, where="out"), rank.number if rank is not None else 0)]
    return runs_called(run_name(rows.name, rows.split, components.policy.model))
