"""`windrow.collect` and `windrow.run_examples`: a collection as an async iterator.

async for rollout in windrow.collect("tasks.jsonl", model="m", base_url="http://…/v1", samples=4):
    ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal, overload

from windrow.agents import Agent, AgentFunction
from windrow.collecting.collection import Collection
from windrow.collecting.events import Event, GroupReady, RolloutReady
from windrow.collecting.given_rows import GivenRows
from windrow.collecting.iteration import Collected
from windrow.collecting.opening import open_collection
from windrow.collecting.resolve import ResolvedRun, resolve
from windrow.collecting.running import OnCommit, OnProgress
from windrow.config import load_config
from windrow.engine.components import Overrides
from windrow.envs import BaseEnv
from windrow.policies import Policy
from windrow.records import Json, Rollout, RolloutGroup
from windrow.tools import Tool
from windrow.tools.functions import as_tool

__all__ = ["collect", "run_examples"]

Row = Mapping[str, Json]


@overload
def collect(
    tasks: str | Path | Iterable[Row] | None = None, *, groups: Literal[False] = False, **options: Any
) -> Collected[Rollout]: ...
@overload
def collect(
    tasks: str | Path | Iterable[Row] | None = None, *, groups: Literal[True], **options: Any
) -> Collected[RolloutGroup]: ...
def collect(
    tasks: str | Path | Iterable[Row] | None = None,
    *,
    config: str | Path | Sequence[str | Path] = (),
    sets: Iterable[str] = (),
    policy: Policy | None = None,
    env: str | type[BaseEnv] | None = None,
    agent: str | type[Agent] | AgentFunction | None = None,
    scorers: Sequence[str | Callable[..., Any]] | None = None,
    tools: Sequence[str | Mapping[str, Json] | Tool | Callable[..., Any]] | None = None,
    groups: bool = False,
    overwrite: bool = False,
    redo: str | None = None,
    regrade: bool = False,
    on_commit: OnCommit | None = None,
    on_progress: OnProgress | None = None,
    on_warning: Callable[[str], None] | None = None,
    aggregate: bool = True,
    **options: Any,
) -> Collected[Any]:
    """Collect what is missing of a run, and yield each rollout of this call once it is on disk and graded.

    `tasks` is a file or the rows themselves; `tools` are functions, Tools, `module:name` or entries as the
    configuration has them; `options` are the command's flags with underscores (`base_url`,
    `temperature`, `concurrency`, `out`, …). With `groups=True`, whole graded groups come out instead. At the end
    metrics.json is written unless `aggregate` is false. Leaving the loop early cancels what runs; what was committed
    stays, and the same call continues.
    """

    def resolve_run() -> ResolvedRun:
        overrides, named = _overrides(tasks, policy, env, agent, scorers, tools)
        files = [config] if isinstance(config, str | Path) else list(config)
        return resolve(load_config(files, {**options, **named}, sets), overrides)

    def open_run(run: ResolvedRun) -> Collection:
        return open_collection(
            run,
            overwrite=overwrite,
            redo=redo,
            regrade=regrade,
            groups=groups,
            on_warning=on_warning,
        )

    def item_of(event: Event) -> Rollout | RolloutGroup | None:
        if isinstance(event, GroupReady):
            return event.group
        return event.rollout if isinstance(event, RolloutReady) and not groups else None

    return Collected(
        resolve_run,
        open_run,
        item_of,
        wanted=GroupReady if groups else RolloutReady,
        on_commit=on_commit,
        on_progress=on_progress,
        aggregate=aggregate,
    )


async def run_examples(
    rows: Sequence[Row],
    *,
    env: str | type[BaseEnv] | None = None,
    policy: Policy | None = None,
    agent: str | type[Agent] | AgentFunction | None = None,
    semaphore: asyncio.Semaphore | None = None,
    store: str | Path | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Row, Rollout]]:
    """Run each row and yield (row, its rollout) as they are done, on the same engine as `collect`.

    A failed attempt that is tried again is not given out; the last one is. Rows that number their tasks themselves are
    one task for each number, with a sample for each row. An agent that plays elsewhere takes no `policy`.

    Nothing is written unless `store` names a run directory. Every episode also holds `semaphore`, which the caller may
    share with other work.
    """
    overrides, named = _overrides(rows, policy, env, agent, None)
    if store is not None:
        named["out"] = str(store)
    by_group: dict[str, list[Row]] = {}

    def resolve_run() -> ResolvedRun:
        return resolve(load_config((), {**options, **named}), overrides)

    def open_run(run: ResolvedRun) -> Collection:
        collection = open_collection(run, stored=store is not None, semaphore=semaphore)
        # A resumed run keeps the task numbers of its first call, so rows are found by those of this call; a rank has its share.
        tasks = collection.resolved.tasks if collection.resolved.rank is None else collection.plan.tasks
        given = GivenRows(rows)
        by_group.update({collection.plan.group(n): given.of(tasks.task(n)) for n in range(len(tasks))})
        return collection

    def item_of(event: Event) -> Rollout | None:
        return event.rollout if isinstance(event, RolloutReady) and event.settled else None

    async with aclosing(Collected(resolve_run, open_run, item_of, wanted=RolloutReady)) as collected:
        async for rollout in collected:
            own = by_group[rollout.group]
            yield own[min(rollout.sample, len(own) - 1)], rollout


def _overrides(
    tasks: str | Path | Iterable[Row] | None,
    policy: Policy | None,
    env: str | type[BaseEnv] | None,
    agent: str | type[Agent] | AgentFunction | None,
    scorers: Sequence[str | Callable[..., Any]] | None,
    tools: Sequence[str | Mapping[str, Json] | Tool | Callable[..., Any]] | None = None,
) -> tuple[Overrides, dict[str, Any]]:
    """What was given as objects, and what was given by name."""
    named: dict[str, Any] = {}
    if scorers is not None:
        named["scorers"] = [scorer for scorer in scorers if isinstance(scorer, str)]
    if tools is not None:
        named["tools"] = [tool for tool in tools if isinstance(tool, str | Mapping)]
    if isinstance(tasks, str | Path):
        named["tasks"] = str(tasks)
    if isinstance(env, str):
        named["env"] = env
    if isinstance(agent, str):
        named["agent"] = agent
    overrides = Overrides(
        rows=None if tasks is None or isinstance(tasks, str | Path) else tasks,
        policy=policy,
        env=env if isinstance(env, type) else None,
        agent=None if isinstance(agent, str) else agent,
        scorers=tuple(scorer for scorer in scorers or () if not isinstance(scorer, str)),
        tools=tuple(as_tool(tool) for tool in tools or () if not isinstance(tool, str | Mapping)),
    )
    return overrides, named
