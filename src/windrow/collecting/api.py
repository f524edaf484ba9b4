"""`windrow.collect` and `windrow.run_examples`: a collection as an async iterator.

async for rollout in windrow.collect("tasks.jsonl", model="m", base_url="http://…/v1", samples=4):
    ...
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal, overload

from windrow.agents import Agent, AgentFunction
from windrow.collecting.collection import Collection, Summary, open_collection
from windrow.collecting.resolve import resolve
from windrow.config import load_config
from windrow.engine.components import Overrides
from windrow.engine.control import Control
from windrow.engine.progress import Progress
from windrow.envs import BaseEnv
from windrow.policies import Policy
from windrow.records import Json, Rollout, RolloutGroup
from windrow.tools import Tool
from windrow.tools.functions import as_tool
from windrow.trackers.names import missing, trackers_of
from windrow.trackers.reporting import track
from windrow.util.cancellation import is_cancelled

__all__ = ["collect", "run_examples"]

STEPS_TO_LEAVE = 16  # of the loop: two for each generator around the one that was left

Row = Mapping[str, Json]
OnCommit = Callable[[Rollout], Awaitable[None] | None]
OnProgress = Callable[[Progress], None]


@overload
def collect(
    tasks: str | Path | Iterable[Row] | None = None, *, groups: Literal[False] = False, **options: Any
) -> AsyncIterator[Rollout]: ...
@overload
def collect(
    tasks: str | Path | Iterable[Row] | None = None, *, groups: Literal[True], **options: Any
) -> AsyncIterator[RolloutGroup]: ...
async def collect(
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
) -> AsyncIterator[Any]:
    """Collect what is missing of a run, and yield each rollout of this call once it is on disk and graded.

    `tasks` is a file or the rows themselves; `tools` are functions, Tools, `module:name` or entries as the
    configuration has them; `options` are the command's flags with underscores (`base_url`,
    `temperature`, `concurrency`, `out`, …). With `groups=True`, whole graded groups come out instead. At the end
    metrics.json is written unless `aggregate` is false. Leaving the loop early cancels what runs; what was committed
    stays, and the same call continues.
    """
    await _others_left()
    overrides, named = _parts(tasks, policy, env, agent, scorers, tools)
    files = [config] if isinstance(config, str | Path) else list(config)
    loaded = load_config(files, {**options, **named}, sets)
    collection = open_collection(
        resolve(loaded, overrides),
        overwrite=overwrite,
        redo=redo,
        regrade=regrade,
        groups=groups,
        on_warning=on_warning,
    )
    stream = _stream(
        collection, groups=groups, on_commit=on_commit, on_progress=on_progress, aggregate=aggregate
    )
    async with aclosing(stream):
        async for item in stream:
            yield item


async def run_examples(
    rows: Sequence[Row],
    *,
    env: str | type[BaseEnv],
    policy: Policy,
    agent: str | type[Agent] | AgentFunction | None = None,
    semaphore: asyncio.Semaphore | None = None,
    store: str | Path | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Row, Rollout]]:
    """Run each row and yield (row, its rollout) as they are done, on the same engine as `collect`.

    A failed attempt that is tried again is not given out; the last one is.

    Nothing is written unless `store` names a run directory. `semaphore` bounds the episodes together with whatever
    else holds it.
    """
    await _others_left()
    overrides, named = _parts(rows, policy, env, agent, None)
    if store is not None:
        named["out"] = str(store)
    loaded = load_config((), {**options, **named})
    collection = open_collection(resolve(loaded, overrides), stored=store is not None, gate=semaphore)
    # A run that goes on numbers its tasks as it did at first; here the rows count, of which a rank has its share.
    tasks = collection.resolved.tasks if collection.resolved.rank is None else collection.plan.tasks
    by_group = {collection.plan.group(n): rows[tasks.task(n).index] for n in range(len(tasks))}
    async with aclosing(_stream(collection, settled_only=True)) as stream:
        async for rollout in stream:
            yield by_group[rollout.group], rollout


async def run_collection(
    collection: Collection,
    *,
    control: Control | None = None,
    on_commit: OnCommit | None = None,
    on_progress: OnProgress | None = None,
    deliver: Callable[[Rollout, bool], Awaitable[None]] | None = None,
    on_group: Callable[[RolloutGroup], Awaitable[None]] | None = None,
    aggregate: bool = False,
    merged_later: bool = False,
) -> Summary:
    """Run an opened collection to its end, or until `control` stops it; callbacks that raise are reported.

    `deliver(rollout, settled)` is awaited after them, and what it raises ends the run. When it was not stopped, `aggregate`
    writes metrics.json, and the trackers are told; not by a rank, which has a share: `merged_later` says that who merges will.
    """
    control = control or Control()
    if collection.path is not None:
        for message in filter(None, map(missing, trackers_of(collection.resolved.run.track))):
            collection.warn(message)

    async def progressed() -> None:
        if on_progress is not None:
            await _guarded(collection, "on_progress", on_progress, collection.progress)

    async def committed(rollout: Rollout, settled: bool) -> None:
        if on_commit is not None:
            await _guarded(collection, "on_commit", on_commit, rollout)
        if deliver is not None:
            await deliver(rollout, settled)

    wanted = on_commit is not None or deliver is not None
    try:
        summary = await collection.run(
            control,
            committed if wanted else None,
            progressed if on_progress is not None else None,
            on_group,
        )
        if aggregate and not control.stopping:
            await collection.aggregate()
    finally:
        collection.close()
    if not merged_later:
        await _track(collection, control)
    return summary


async def _track(collection: Collection, control: Control) -> None:
    """Tell trackers of a run that was not stopped. Its lock is free by then: an upload may take its time."""
    run, path, rank = collection.resolved.run, collection.path, collection.resolved.rank
    if path is None or control.stopping or not (trackers := trackers_of(run.track)):
        return
    if rank is not None:
        if rank.number == 0:
            collection.warn(
                f"no tracker was told, since a rank has only its share; when all are done, send the whole run: windrow stats "
                f"{path} --track {trackers[0].name}"
            )
        return
    collection.progress.phase = "tracking"
    sending = track(
        path,
        trackers,
        upload_rollouts=run.upload_rollouts,
        metrics=collection.metrics,
        warn=collection.warn,
    )
    try:
        with control.cancellable():
            await sending
    except asyncio.CancelledError:
        if not control.absorb():
            raise


async def _stream(
    collection: Collection,
    *,
    groups: bool = False,
    settled_only: bool = False,
    on_commit: OnCommit | None = None,
    on_progress: OnProgress | None = None,
    aggregate: bool = False,
) -> AsyncGenerator[Any, None]:
    """What the collection commits, as it comes. The consumer's pace holds the engine back."""
    control = Control()
    queue: asyncio.Queue[Any] = asyncio.Queue(maxsize=max(16, collection.resolved.concurrency))
    end = object()

    async def produce() -> None:
        async def deliver(rollout: Rollout, settled: bool) -> None:
            if control.cancelled or (settled_only and not settled):
                return
            await queue.put(rollout)

        async def deliver_group(group: RolloutGroup) -> None:
            if not control.cancelled:
                await queue.put(group)

        try:
            await run_collection(
                collection,
                control=control,
                on_commit=on_commit,
                on_progress=on_progress,
                deliver=None if groups else deliver,
                on_group=deliver_group if groups else None,
                aggregate=aggregate,
            )
        finally:
            await queue.put(end)

    producer = asyncio.ensure_future(produce())
    try:
        while (item := await queue.get()) is not end:
            yield item
        await producer
    finally:
        if not producer.done():
            control.cancel()
            _leaving.add(producer)
            producer.add_done_callback(_leaving.discard)
            while not queue.empty():  # nobody takes what is left, and nothing more is delivered
                queue.get_nowait()
            await asyncio.wait({producer})


_leaving: set[asyncio.Future[None]] = set()  # what runs on for a moment after its loop was left


async def _others_left() -> None:
    """Wait for runs whose loop was left: the interpreter closes those a few steps later, and they hold their locks."""
    for _ in range(STEPS_TO_LEAVE):
        await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    while leaving := [task for task in _leaving if task.get_loop() is loop and not task.done()]:
        await asyncio.wait(leaving)


async def _guarded(collection: Collection, name: str, callback: Callable[[Any], Any], argument: Any) -> None:
    try:
        result = callback(argument)
        if inspect.isawaitable(result):
            await result
    except (Exception, asyncio.CancelledError) as problem:
        if is_cancelled(problem):
            raise
        collection.warn(f"{name} raised {type(problem).__name__}: {problem}; the run goes on")


def _parts(
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
