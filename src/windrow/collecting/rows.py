"""From rows to a source of tasks: where they are read from, and what one pass over them finds out.

What the pass finds out is kept beside the run (`store/scan_index.py`), and taken again for the same rows, checked by the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from windrow.agents import find_agent
from windrow.config import (
    LoadedConfig,
    expand,
)
from windrow.engine.components import Components, Overrides
from windrow.envs import BaseEnv, Match, find_env
from windrow.envs.seating import Seating
from windrow.errors import UsageError
from windrow.grading.answers import answers_of, parse_number
from windrow.grading.run_scorers import (
    DEFAULT_SCORERS_ENV,
)
from windrow.identity import digest
from windrow.records import Json
from windrow.registry import name_of
from windrow.store.scan_index import Findings, ScanIndex, kept_scan
from windrow.tasks.cache import open_anew, open_kept
from windrow.tasks.datasets import JoinedRows, chosen, open_datasets, repeats_of
from windrow.tasks.loaders import FORMS
from windrow.tasks.mapping import MappedRows, parse_map
from windrow.tasks.row_formats import ForeignRows, env_of, own_env, usual_env
from windrow.tasks.row_problems import RowProblems
from windrow.tasks.rows import BadRow, Rows, spool_rows
from windrow.tasks.sampling import TraitTable
from windrow.tasks.scan import Source, scan

# Where the checks stand that go by the row alone.
OUR_CHECKS = frozenset(
    f"windrow.{module}"
    for module in ("agents.base", "envs.base", "envs.chat", "envs.judged", "envs.problem", "envs.rubric")
)


class Survey:
    """What one pass over the rows finds out: which environment each is for, and which have answers."""

    def __init__(self, components: Components, *, choose_scorer: bool, env_named: bool) -> None:
        """`env_named`: whether something says which environment it is, the run or its first row."""
        self._made = components
        self._env_named = env_named
        self._env = components.env
        self._choose_scorer = choose_scorer
        self._prompt = components.prompt
        self._found: dict[tuple[str, str], type | UsageError] = {}
        self.envs: set[type[BaseEnv]] = set()
        self.called: set[str] = set()  # the names under which the agent plays rows, where they have one
        self.problem_rows = 0
        self.all_numbers = True
        self.unanswered = RowProblems()
        self.unanswered_problems = RowProblems()

    @property
    def inputs(self) -> list[Json] | None:
        """What a pass goes by beside the rows; None if it runs code that is not ours, which may go by anything."""
        components = self._made
        if issubclass(components.env, Match) or not all(map(_is_ours, (components.env, components.agent))):
            return None
        prompt = self._prompt.source if self._prompt is not None else None
        env = [name_of(components.env), components.env.takes_prompt, components.env_settings]
        agent = [name_of(components.agent), components.agent_settings]
        return [env, agent, prompt, self._choose_scorer, self._env_named]

    def findings(self) -> Findings | None:
        """What `found_before` needs to take the place of a pass; None if rows name environments or agents: a name in an
        index is never imported."""
        if self._found:
            return None
        return Findings(
            self.problem_rows,
            self.all_numbers,
            (self.unanswered.first, len(self.unanswered)),
            (self.unanswered_problems.first, len(self.unanswered_problems)),
        )

    def found_before(self, findings: Findings) -> None:
        """A pass that goes by the same has found this."""
        self.envs.add(self._env)
        self.problem_rows, self.all_numbers = findings.problem_rows, findings.all_numbers
        self.unanswered = RowProblems(*findings.unanswered)
        self.unanswered_problems = RowProblems(*findings.unanswered_problems)

    def check(self, row: Mapping[str, Json]) -> None:
        env = self._env_of(row)
        if self._prompt is None:
            env.check_row(row)
        elif env.takes_prompt:
            self._prompt.messages(row)
        else:
            raise ValueError(f"env {name_of(env)!r} makes its own prompts and would ignore --prompt")
        if issubclass(env, Match):
            own = env is self._env  # only the run's own has settings
            seating, settings = (self._made.seating, self._made.env_settings) if own else (Seating(), {})
            seating.check(env, settings, row)
        if row.get("agent") is not None:
            self._find("agent", row["agent"], find_agent)
        else:
            self._made.agent.check_row(self._made.agent_settings, row)

    def watch(self, row: Mapping[str, Json], where: str) -> None:
        answer = row.get("answer")
        env = self._env_of(row)
        self.envs.add(env)
        called = self._made.agent.called(self._made.agent_settings, row)
        if called is not None:
            self.called.add(called)
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
        if name is None and not self._env_named and (usual := usual_env(row)) is not None:
            raise ValueError(
                f"the row is played in env {usual!r}, and the first one of the source is not: give --env {usual}, or a file for each"
            )
        if name is None or name == name_of(self._env):
            return self._env
        env: type[BaseEnv] = self._find("env", name, find_env)
        return env

    def _find(self, kind: str, name: str, find: Callable[[str], type]) -> Any:
        if (kind, name) not in self._found:
            try:
                self._found[kind, name] = find(name)
            except UsageError as problem:
                self._found[kind, name] = problem
        found = self._found[kind, name]
        if isinstance(found, UsageError):
            raise ValueError(str(found))
        return found


def repeated(loaded: LoadedConfig, overrides: Overrides) -> LoadedConfig:
    """As many samples as the data sets say, where nothing else says it."""
    run = loaded.run
    if not run.datasets or overrides.rows is not None or "samples" in loaded.origins:
        return loaded
    said = repeats_of(chosen(run, expand(run.tasks.split, where="tasks.split"))[1])
    if said is None:
        return loaded
    origins = {**loaded.origins, "samples": "datasets"}
    return LoadedConfig(msgspec.structs.replace(run, samples=said), origins)


class Opened(msgspec.Struct, frozen=True):
    """The rows that a configuration names, unread."""

    rows: ForeignRows | JoinedRows
    name: str
    split: str | None


def open_rows(loaded: LoadedConfig, overrides: Overrides) -> Opened:
    config = loaded.run.tasks
    source = expand(config.source, where="tasks.source")
    split = expand(config.split, where="tasks.split")
    opened = open_kept if loaded.run.reuse_prepared else open_anew
    if overrides.rows is not None:
        name = source or "rows"
        return Opened(ForeignRows(spool_rows(overrides.rows, name)), name, split)
    if loaded.run.datasets:
        split, datasets = chosen(loaded.run, split)
        joined = open_datasets(datasets, split, opened)
        return Opened(joined, "+".join(sorted(joined.sources)), split)
    if not config.path:
        raise UsageError(f"no tasks: give {FORMS}")
    rows, found = opened(expand(config.path, where="tasks.path"), split)
    return Opened(ForeignRows(rows), source or found, split)


def names_env(loaded: LoadedConfig, overrides: Overrides) -> bool:
    return overrides.env is not None or any(
        place == "env" or place.startswith("env.") for place in loaded.origins
    )


def as_played(loaded: LoadedConfig, overrides: Overrides, opened: Opened) -> LoadedConfig:
    """In the environment that rows of their system are played in, where nothing names one."""
    if names_env(loaded, overrides):
        return loaded
    as_they_are = not loaded.run.tasks.map and loaded.run.prompt is None
    name = env_of(opened.rows, as_they_are=as_they_are)
    if name is None:
        return loaded
    env = msgspec.structs.replace(loaded.run.env, name=name)
    origins = {**loaded.origins, "env.name": opened.rows.name}
    return LoadedConfig(msgspec.structs.replace(loaded.run, env=env), origins)


class Scanned(msgspec.Struct, frozen=True):
    """The tasks, and what is to be kept of the pass that found them, if it was made and can be."""

    source: Source
    index: ScanIndex | None


def scan_rows(
    loaded: LoadedConfig,
    opened: Opened,
    survey: Survey,
    table: TraitTable | None = None,
    runs: Iterable[Path] = (),
) -> Scanned:
    """One pass over the rows, or what one of `runs` has kept of the same pass; `table` takes what a draw goes by."""
    key = _scan_key(loaded, opened, survey) if table is None else None
    kept = kept_scan(runs, key) if key is not None else None
    if kept is not None:
        survey.found_before(kept.findings)
        rows = _mapped(loaded, opened)
        return Scanned(Source.unpack(kept.source, rows, name=opened.name, split=opened.split), None)
    source = _scan(loaded, opened, survey, table)
    findings = survey.findings() if key is not None and not source.invalid else None
    if key is None or findings is None or (opened.rows.repeats or opened.rows.seeded or opened.rows.unheeded):
        return Scanned(source, None)
    return Scanned(source, ScanIndex(key, source, findings))


def _scan_key(loaded: LoadedConfig, opened: Opened, survey: Survey) -> str | None:
    """A digest of all that a pass goes by; None if that cannot be told."""
    rows, inputs = opened.rows, survey.inputs
    content = rows.content_digest() if isinstance(rows, ForeignRows) and inputs is not None else None
    if content is None:
        return None
    maps = expand(loaded.run.tasks.map, where="tasks.map")
    return digest([content, rows.name, opened.name, opened.split, maps, inputs])


def _scan(loaded: LoadedConfig, opened: Opened, survey: Survey, table: TraitTable | None) -> Source:

    def watch(row: Mapping[str, Json], where: str) -> None:
        survey.watch(row, where)
        if table is not None:
            table.watch(row)

    rows = opened.rows
    return scan(
        _mapped(loaded, opened),
        name=opened.name,
        split=opened.split,
        check=survey.check,
        watch=watch,
        skip_invalid=loaded.run.tasks.skip_invalid,
        source_of=rows.source_of if isinstance(rows, JoinedRows) else None,
    )


def _mapped(loaded: LoadedConfig, opened: Opened) -> Rows:
    maps = parse_map(expand(loaded.run.tasks.map, where="tasks.map"), loaded.origins)
    return MappedRows(opened.rows, maps) if maps else opened.rows


def _is_ours(part: type) -> bool:
    """Whether rows for an environment or an agent are checked by our code alone, and by nothing but the row."""
    checks = (getattr(part, name, None) for name in ("check_row", "called"))
    functions = (getattr(check, "__func__", check) for check in checks if check is not None)
    return all(getattr(function, "__module__", None) in OUR_CHECKS for function in functions)


def as_numbered(
    loaded: LoadedConfig, rows: ForeignRows | JoinedRows, components: Components
) -> tuple[LoadedConfig, tuple[str, ...]]:
    """As many samples as numbered rows have for each task, unless the configuration says how many; and what to say."""
    notes: list[str] = []
    if rows.unheeded and not components.agent.external:
        asked = ", ".join(sorted(rows.unheeded))
        notes.append(f"rows ask for {asked}, which this policy is not told: its tools are --tool and --mcp")
    run = loaded.run
    if rows.seeded and run.seeds != "sample":
        notes.append("rows have the numbers of their rollouts as seeds; --seeds sample sends them")
    if rows.repeats is not None:
        least, most = rows.repeats
        has = f"from {least} to {most} rows" if least != most else "1 row" if most == 1 else f"{most} rows"
        if "samples" in loaded.origins and run.samples != most:
            notes.append(f"{rows.name} has {has} a task; -k {run.samples} makes {run.samples}")
        elif "samples" not in loaded.origins and most > 1:
            run = msgspec.structs.replace(run, samples=most)
            notes.append(f"{rows.name} has {has} a task, so there are {most} samples of each (-k {most})")
    return msgspec.structs.replace(loaded, run=run), tuple(notes)
