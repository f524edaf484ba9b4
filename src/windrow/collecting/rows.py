"""The rows of a run: opened, surveyed in one pass, and what they imply for the configuration.

The survey is kept beside the run (`store/scan_index.py`). A later call takes it instead of a pass if rows and checks are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from windrow.agents import find_agent
from windrow.config import LoadedConfig, ScorerConfig, expand
from windrow.engine.components import Components, Overrides
from windrow.envs import BaseEnv, Match, find_env
from windrow.envs.seating import Seating
from windrow.errors import UsageError
from windrow.grading.answers import answers_of, check_pattern_answers, parse_number
from windrow.grading.run_scorers import DEFAULT_SCORERS_ENV
from windrow.identity import digest
from windrow.policies.base import extra_problem
from windrow.records import Json
from windrow.registry import name_of
from windrow.store.scan_index import Findings, ScanIndex, kept_scan
from windrow.tasks.cache import open_anew, open_kept
from windrow.tasks.datasets import JoinedRows, datasets_of_split, open_datasets, repeats_of
from windrow.tasks.loaders import describe_sources
from windrow.tasks.mapping import MappedRows, parse_map
from windrow.tasks.row_formats import ForeignRows, env_of, own_env, sampling_of, usual_env
from windrow.tasks.row_problems import RowProblems
from windrow.tasks.rows import BadRow, Rows, spool_rows
from windrow.tasks.rubrics import rubric_of
from windrow.tasks.sampling import TraitTable
from windrow.tasks.scan import Source, scan
from windrow.tasks.trust import Demand, RowTrust, module_demands

# Modules whose row checks depend on the row alone.
OUR_CHECKS = frozenset(
    f"windrow.{module}"
    for module in ("agents.base", "envs.base", "envs.chat", "envs.judged", "envs.problem", "envs.rubric")
)

MAX_NOTED = 100  # of the demands of rows


class OpenedRows(msgspec.Struct, frozen=True):
    """The rows that a configuration names. Only the first one was read."""

    rows: ForeignRows | JoinedRows
    name: str
    split: str | None
    samples: int | None = None  # how many per task the data sets ask for
    env: str | None = None  # the environment that plays rows like the first one, where nothing names one

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that the configuration gives to rows."""
        return self.rows.agents if isinstance(self.rows, JoinedRows) else ()


class RowSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of one pass over the rows."""

    source: Source
    index: ScanIndex | None  # to be kept beside the run; None: kept already, or not to be kept
    envs: frozenset[type[BaseEnv]]
    agent_names: frozenset[str]  # the names under which the agent plays rows, where they have one
    problem_rows: int  # rows for the environment whose default scorers compare answers
    all_numbers: bool  # whether every answer of those is a number
    unanswered: RowProblems
    unanswered_problems: RowProblems
    repeats: tuple[int, int] | None  # how many rows numbered tasks have, at least and at most
    seeded: bool  # whether rows have the numbers of their rollouts as seeds
    split_repeats: int  # rows that repeat an earlier one, where their system would make one task of both
    unheeded: frozenset[str]  # parameters that rows ask for and that are not sent to the policy
    allowed: dict[Demand, str]  # what rows demand beside data, the first of it, and what allows it


def open_rows(loaded: LoadedConfig, overrides: Overrides) -> OpenedRows:
    config = loaded.run.tasks
    source = expand(config.source, where="tasks.source")
    split = expand(config.split, where="tasks.split")
    open_source = open_kept if loaded.run.reuse_prepared else open_anew
    samples = None
    if overrides.rows is not None:
        name = source or "rows"
        rows: ForeignRows | JoinedRows = ForeignRows(spool_rows(overrides.rows, name))
    elif loaded.run.datasets:
        split, datasets = datasets_of_split(loaded.run, split)
        samples = repeats_of(datasets) if "samples" not in loaded.origins else None
        rows = open_datasets(datasets, split, open_source)
        name = "+".join(sorted(rows.sources))
    elif not config.path:
        raise UsageError(f"no tasks: give {describe_sources()}")
    else:
        plain_rows, found_name = open_source(expand(config.path, where="tasks.path"), split)
        rows, name = ForeignRows(plain_rows), source or found_name
    env = None if _names_env(loaded, overrides) else env_of(rows, as_they_are=_as_they_are(loaded))
    return OpenedRows(rows, name, split, samples, env)


def survey_rows(
    loaded: LoadedConfig,
    overrides: Overrides,
    opened: OpenedRows,
    components: Components,
    trust: RowTrust,
    *,
    traits: TraitTable | None = None,
    earlier_runs: Iterable[Path] = (),
) -> RowSurvey:
    """One pass over the rows, or the survey that one of `earlier_runs` has kept of the same pass.

    The pass fills `traits`, by which tasks are drawn.
    """
    checker = _RowChecker(
        components,
        trust,
        choose_scorer=loaded.run.scorers is None and not overrides.scorers,
        env_named=_names_env(loaded, overrides) or opened.env is not None,
        scorers=loaded.run.scorers or (),
    )
    key = _scan_key(loaded, opened, checker) if traits is None else None
    kept = kept_scan(earlier_runs, key) if key is not None else None
    if kept is not None:
        checker.take(kept.findings)
        source = Source.unpack(kept.source, _mapped(loaded, opened), name=opened.name, split=opened.split)
        return checker.survey(source, opened.rows, None)
    source = _scan(loaded, opened, checker, traits)
    findings = checker.findings() if key is not None and not source.invalid else None
    split = opened.rows.merged_elsewhere and source.repeated > 0
    numbered = opened.rows.repeats or opened.rows.seeded or opened.rows.unheeded or split
    index = (
        ScanIndex(key, source, findings)
        if key is not None and findings is not None and not numbered
        else None
    )
    return checker.survey(source, opened.rows, index)


def settle_config(
    loaded: LoadedConfig, opened: OpenedRows, survey: RowSurvey, components: Components
) -> tuple[LoadedConfig, tuple[str, ...]]:
    """The configuration with what the rows imply where it is silent: the environment and the samples; and notes about it."""
    run, origins, notes = loaded.run, dict(loaded.origins), []
    if opened.env is not None:
        run = msgspec.structs.replace(run, env=msgspec.structs.replace(run.env, name=opened.env))
        origins["env.name"] = opened.rows.name
    if opened.samples is not None:
        run = msgspec.structs.replace(run, samples=opened.samples)
        origins["samples"] = "datasets"
    if survey.unheeded and not components.agent.external:
        asked = ", ".join(sorted(survey.unheeded))
        notes.append(f"rows ask for {asked}, which this policy is not told: its tools are --tool and --mcp")
    if survey.seeded and run.seeds != "sample":
        notes.append("rows have the numbers of their rollouts as seeds; --seeds sample sends them")
    if survey.split_repeats:
        notes.append(
            f"{survey.split_repeats} of the rows repeat an earlier one and are tasks of their own here; where they come "
            f"from they would be samples of one task: leave them out and give -k"
        )
    if survey.repeats is not None:
        least, most = survey.repeats
        has = f"from {least} to {most} rows" if least != most else "1 row" if most == 1 else f"{most} rows"
        name = opened.rows.name
        if "samples" in origins and run.samples != most:
            notes.append(f"{name} has {has} a task; -k {run.samples} makes {run.samples}")
        elif "samples" not in origins and most > 1:
            run = msgspec.structs.replace(run, samples=most)
            notes.append(f"{name} has {has} a task, so there are {most} samples of each (-k {most})")
    return msgspec.structs.replace(loaded, run=run, origins=origins), tuple(notes)


class _RowChecker:
    """Checks each row of a pass and gathers the survey."""

    def __init__(
        self,
        components: Components,
        trust: RowTrust,
        *,
        choose_scorer: bool,
        env_named: bool,
        scorers: Iterable[ScorerConfig] = (),
    ) -> None:
        """`env_named`: whether something names the environment, the run or its first row."""
        self._pattern_answers = any(one.name == "regex" and "pattern" not in one.settings for one in scorers)
        self._rubrics = any(one.name == "rubric" for one in scorers)
        self._components = components
        self._trust = trust
        self._allowed: dict[Demand, str] = {}
        self._env_named = env_named
        self._env = components.env
        self._choose_scorer = choose_scorer
        self._prompt = components.prompt
        # Environments and agents that rows name.
        self._named_in_rows: dict[tuple[str, str], type | UsageError] = {}
        self.envs: set[type[BaseEnv]] = set()
        self.agent_names: set[str] = set()
        self.problem_rows = 0
        self.all_numbers = True
        self.unanswered = RowProblems()
        self.unanswered_problems = RowProblems()

    def survey(self, source: Source, rows: ForeignRows | JoinedRows, index: ScanIndex | None) -> RowSurvey:
        return RowSurvey(
            source=source,
            index=index,
            envs=frozenset(self.envs),
            agent_names=frozenset(self.agent_names),
            problem_rows=self.problem_rows,
            all_numbers=self.all_numbers,
            unanswered=self.unanswered,
            unanswered_problems=self.unanswered_problems,
            repeats=rows.repeats,
            seeded=rows.seeded,
            split_repeats=source.repeated if rows.merged_elsewhere else 0,
            unheeded=frozenset(rows.unheeded),
            allowed=self._allowed,
        )

    @property
    def inputs(self) -> list[Json] | None:
        """Everything beside the rows that a pass depends on; None if it runs user code, which may depend on anything."""
        components = self._components
        if issubclass(components.env, Match) or not all(
            map(_checks_only_the_row, (components.env, components.agent))
        ):
            return None
        prompt = self._prompt.source if self._prompt is not None else None
        env = [name_of(components.env), components.env.takes_prompt, components.env_settings]
        agent = [name_of(components.agent), components.agent_settings]
        reads = [self._pattern_answers, self._rubrics, sorted(components.policy.own_fields)]
        return [env, agent, prompt, self._choose_scorer, self._env_named, reads]

    def findings(self) -> Findings | None:
        """The part of a survey that is kept; None if rows name environments or agents: a name in an index is never imported."""
        if self._named_in_rows:
            return None
        return Findings(
            self.problem_rows,
            self.all_numbers,
            (self.unanswered.first, len(self.unanswered)),
            (self.unanswered_problems.first, len(self.unanswered_problems)),
        )

    def take(self, findings: Findings) -> None:
        """Take the findings of an earlier pass with the same inputs."""
        self.envs.add(self._env)
        self.problem_rows, self.all_numbers = findings.problem_rows, findings.all_numbers
        self.unanswered = RowProblems(*findings.unanswered)
        self.unanswered_problems = RowProblems(*findings.unanswered_problems)

    def check(self, row: Mapping[str, Json]) -> None:
        env = self._env_of(row)
        self._admit(env.demands(row))
        if self._prompt is None:
            env.check_row(row)
        elif env.takes_prompt:
            self._prompt.messages(row)
        else:
            raise ValueError(f"env {name_of(env)!r} makes its own prompts and would ignore --prompt")
        if issubclass(env, Match):
            own = env is self._env  # only the run's own has settings
            seating, settings = (
                (self._components.seating, self._components.env_settings) if own else (Seating(), {})
            )
            seating.check(env, settings, row)
        if row.get("agent") is not None:
            if row["agent"] != name_of(self._components.agent):
                self._admit(module_demands(row["agent"], "agent"))
            self._find("agent", row["agent"], find_agent)
        else:
            self._components.agent.check_row(self._components.agent_settings, row)
        self._check_what_is_sent_and_read(row)

    def _check_what_is_sent_and_read(self, row: Mapping[str, Json]) -> None:
        if problem := extra_problem(sampling_of(row).get("extra"), self._components.policy.own_fields):
            raise ValueError(problem)
        if self._rubrics:
            rubric_of(row)
        if self._pattern_answers and row.get("answer") is not None:
            check_pattern_answers(row["answer"])

    def watch(self, row: Mapping[str, Json], where: str) -> None:
        answer = row.get("answer")
        env = self._env_of(row)
        self.envs.add(env)
        name = self._components.agent.called(self._components.agent_settings, row)
        if name is not None:
            self.agent_names.add(name)
        is_problem = name_of(env) == DEFAULT_SCORERS_ENV
        self.problem_rows += is_problem
        if answer is None:
            problem = BadRow(where, "no 'answer'")
            self.unanswered.append(problem)
            if is_problem:
                self.unanswered_problems.append(problem)
        elif is_problem and self._choose_scorer and self.all_numbers:
            self.all_numbers = all(parse_number(text) is not None for text in answers_of(answer))

    def _env_of(self, row: Mapping[str, Json]) -> type[BaseEnv]:
        name = own_env(row)
        if name is None and not self._env_named and (expected := usual_env(row)) is not None:
            raise ValueError(
                f"the row is played in env {expected!r}, and the first one of the source is not: give --env {expected}, or a file for each"
            )
        if name is None or name == name_of(self._env):
            return self._env
        self._admit(module_demands(name, "env"))
        env: type[BaseEnv] = self._find("env", name, find_env)
        return env

    def _admit(self, demands: Iterable[Demand]) -> None:
        """Refuse a row with a demand that is not allowed, and note those that are."""
        for demand in demands:
            self._trust.check([demand])
            if len(self._allowed) < MAX_NOTED:
                self._allowed[demand] = str(self._trust.allowed_by(demand))

    def _find(self, kind: str, name: str, find: Callable[[str], type]) -> Any:
        if (kind, name) not in self._named_in_rows:
            try:
                self._named_in_rows[kind, name] = find(name)
            except UsageError as problem:
                self._named_in_rows[kind, name] = problem
        part = self._named_in_rows[kind, name]
        if isinstance(part, UsageError):
            raise ValueError(str(part))
        return part


def _names_env(loaded: LoadedConfig, overrides: Overrides) -> bool:
    return overrides.env is not None or any(key == "env" or key.startswith("env.") for key in loaded.origins)


def _as_they_are(loaded: LoadedConfig) -> bool:
    """Whether neither a mapping nor a template changes what an episode opens with."""
    return not loaded.run.tasks.map and loaded.run.prompt is None


def _scan_key(loaded: LoadedConfig, opened: OpenedRows, checker: _RowChecker) -> str | None:
    """A digest of everything that a pass depends on; None if that is not known."""
    rows, inputs = opened.rows, checker.inputs
    content = rows.content_digest() if isinstance(rows, ForeignRows) and inputs is not None else None
    if content is None:
        return None
    maps = expand(loaded.run.tasks.map, where="tasks.map")
    return digest([content, rows.name, opened.name, opened.split, maps, inputs, loaded.run.tasks.max_row_mb])


def _scan(
    loaded: LoadedConfig, opened: OpenedRows, checker: _RowChecker, traits: TraitTable | None
) -> Source:
    def watch(row: Mapping[str, Json], where: str) -> None:
        checker.watch(row, where)
        if traits is not None:
            traits.watch(row)

    rows = opened.rows
    return scan(
        _mapped(loaded, opened),
        name=opened.name,
        split=opened.split,
        check=checker.check,
        watch=watch,
        skip_invalid=loaded.run.tasks.skip_invalid,
        source_of=rows.source_of if isinstance(rows, JoinedRows) else None,
        max_row_bytes=loaded.run.tasks.max_row_mb << 20,
    )


def _mapped(loaded: LoadedConfig, opened: OpenedRows) -> Rows:
    maps = parse_map(expand(loaded.run.tasks.map, where="tasks.map"), loaded.origins)
    return MappedRows(opened.rows, maps) if maps else opened.rows


def _checks_only_the_row(part: type) -> bool:
    """Whether our code alone checks the rows of an environment or an agent, and looks at nothing but the row."""
    checks = (getattr(part, name, None) for name in ("check_row", "called", "demands"))
    functions = (getattr(check, "__func__", check) for check in checks if check is not None)
    return all(getattr(function, "__module__", None) in OUR_CHECKS for function in functions)
