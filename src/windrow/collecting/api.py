"""`windrow.collect` and `windrow.run_examples`: a collection as an async iterator.

async for rollout in windrow.collect("tasks.jsonl", model="m", base_url="http://…/v1", samples=4):
    ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, overload

from windrow.agents import Agent, AgentFunction
from windrow.collecting.collection import Collection, Summary
from windrow.collecting.events import Event, EventStream, GroupReady, RolloutReady
from windrow.collecting.opening import open_collection
from windrow.collecting.resolve import ResolvedRun, resolve
from windrow.collecting.running import Callbacks, OnCommit, OnProgress, run_into
from windrow.config import load_config
from windrow.engine.components import Overrides
from windrow.engine.control import Control
from windrow.envs import BaseEnv
from windrow.policies import Policy
from windrow.records import Json, Rollout, RolloutGroup
from windrow.tools import Tool
from windrow.tools.functions import as_tool

__all__ = ["collect", "run_examples"]

TURNS_TO_LEAVE = 32

Row = Mapping[str, Json]
Item = TypeVar("Item")


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
    env: str | type[BaseEnv],
    policy: Policy,
    agent: str | type[Agent] | AgentFunction | None = None,
    semaphore: asyncio.Semaphore | None = None,
    store: str | Path | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Row, Rollout]]:
    """Run each row and yield (row, its rollout) as they are done, on the same engine as `collect`.

    A failed attempt that is tried again is not given out; the last one is.

    Nothing is written unless `store` names a run directory. Every episode also holds `semaphore`, which the caller may
    share with other work.
    """
    overrides, named = _overrides(rows, policy, env, agent, None)
    if store is not None:
        named["out"] = str(store)
    by_group: dict[str, Row] = {}

    def resolve_run() -> ResolvedRun:
        return resolve(load_config((), {**options, **named}), overrides)

    def open_run(run: ResolvedRun) -> Collection:
        collection = open_collection(run, stored=store is not None, semaphore=semaphore)
        # A resumed run keeps the task numbers of its first call, so rows are found by those of this call; a rank has its share.
        tasks = collection.resolved.tasks if collection.resolved.rank is None else collection.plan.tasks
        by_group.update({collection.plan.group(n): rows[tasks.task(n).index] for n in range(len(tasks))})
        return collection

    def item_of(event: Event) -> Rollout | None:
        return event.rollout if isinstance(event, RolloutReady) and event.settled else None

    async with aclosing(Collected(resolve_run, open_run, item_of, wanted=RolloutReady)) as collected:
        async for rollout in collected:
            yield by_group[rollout.group], rollout


class Collected(AsyncIterator[Item], Generic[Item]):
    """The rollouts, or groups, of one call, as they are ready. The run starts when the first one is asked for.

    Leaving the loop early cancels the run; so does `aclose`, which returns when its lock is free.
    """

    def __init__(
        self,
        resolve_run: Callable[[], ResolvedRun],
        open_run: Callable[[ResolvedRun], Collection],
        item_of: Callable[[Event], Item | None],
        *,
        wanted: type[Event],
        on_commit: OnCommit | None = None,
        on_progress: OnProgress | None = None,
        aggregate: bool = False,
    ) -> None:
        """`item_of` is what the caller gets of an event, None if nothing. `wanted` is the kind of event that has it."""
        self._resolve_run = resolve_run
        self._open_run = open_run
        self._item_of = item_of
        self._wanted = wanted
        self._callbacks = on_commit, on_progress
        self._aggregate = aggregate
        self._run: _Run | None = None
        self._closed = False

    async def __anext__(self) -> Item:
        if self._run is None:
            self._run = await self._start()
        try:
            while True:
                event = await self._run.next_event()
                item = self._item_of(event)
                if item is not None and not self._run.was_cut(event):
                    return item
        except asyncio.CancelledError:
            await self.aclose()
            raise

    async def _start(self) -> _Run:
        if self._closed:
            raise StopAsyncIteration
        resolved = self._resolve_run()
        await _abandoned_runs_ended(resolved.out)
        if self._closed:  # meanwhile
            raise StopAsyncIteration
        if self._run is not None:  # another reader has started it meanwhile
            return self._run
        collection = self._open_run(resolved)
        callbacks = Callbacks(collection.warn, *self._callbacks)
        return _Run(collection, callbacks, self._wanted, aggregate=self._aggregate)

    async def aclose(self) -> None:
        """Cancel the run, if it goes on, and return when it has ended."""
        self._closed = True
        if self._run is not None:
            await self._run.leave()

    def __del__(self) -> None:
        if self._run is not None:
            self._run.abandon()


class _Run:
    """A collection that runs in a task of its own, read event by event."""

    def __init__(
        self, collection: Collection, callbacks: Callbacks, wanted: type[Event], *, aggregate: bool
    ) -> None:
        self.path = collection.path
        self._callbacks = callbacks
        self._control = Control()
        room = max(16, collection.resolved.concurrency)
        self._events = EventStream(*callbacks.wanted, wanted, room=room)
        self._read_out = False
        self.leaving: asyncio.Task[None] | None = None  # once its iterator was closed or dropped
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Summary] = self._loop.create_task(
            run_into(self._events, collection, self._control, aggregate=aggregate)
        )
        _running.add(self)
        self._task.add_done_callback(self._ended)

    @property
    def ended(self) -> bool:
        return self._task.done()

    def is_here(self) -> bool:
        """Whether this run is of the current loop."""
        return self._loop is asyncio.get_running_loop()

    async def next_event(self) -> Event:
        """The next event, after its callbacks; at the end, what ended the run is raised."""
        try:
            event = await anext(self._events)
        except StopAsyncIteration:
            self._read_out = True
            await self._task
            raise
        await self._callbacks.call(event)
        return event

    def was_cut(self, event: Event) -> bool:
        """Whether the run was cancelled, say by a budget in seconds, before this rollout had ended or was graded."""
        if not self._control.cancelled or not isinstance(event, RolloutReady):
            return False
        return event.rollout.status == "cancelled" or event.rollout.grade == "pending"

    async def leave(self) -> None:
        """Cancel the run and see it out. Who is cancelled meanwhile waits no longer, and the run is seen out all the same."""
        leaving = self._start_leaving()
        if leaving is not asyncio.current_task():  # a callback may leave its own run
            await asyncio.wait({leaving})

    def abandon(self) -> None:
        """The caller has dropped its iterator, perhaps in another thread: leave in a task that the next call waits for."""
        if not self._read_out and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._start_leaving)

    def _start_leaving(self) -> asyncio.Task[None]:
        if self.leaving is None:
            self._control.cancel()
            self.leaving = self._loop.create_task(self._see_out())
            _running.add(self)
            self.leaving.add_done_callback(lambda _: _running.discard(self))
        return self.leaving

    async def _see_out(self) -> None:
        """Read to the end: callbacks are still called for what the run has committed, and nothing waits for room."""
        try:
            async for event in self._events:
                await self._callbacks.call(event)
            await asyncio.wait({self._task})
        except asyncio.CancelledError:  # by a callback, or with its loop
            self._task.cancel()
            await asyncio.wait({self._task})
            raise

    def _ended(self, _: asyncio.Task[Summary]) -> None:
        if self.leaving is None:
            _running.discard(self)


_running: set[_Run] = set()


async def _abandoned_runs_ended(path: Path) -> None:
    """Wait for runs whose loop was left: they hold their locks until they have ended.

    The interpreter closes a generator that was left, such as one around `collect`, a few turns of the loop later; so a run
    in `path` that nobody seems to have dropped is given some turns. One that is still read then is refused by its lock.
    """
    for _ in range(TURNS_TO_LEAVE):
        await asyncio.sleep(0)  # a run that was dropped just now is leaving afterwards
        # Of this loop, in a copy: other threads start and end runs too. A callback of a run that is left may call for another.
        runs = [run for run in tuple(_running) if run.is_here()]
        others = [run for run in runs if run.leaving is None or run.leaving is not asyncio.current_task()]
        if leaving := [run.leaving for run in others if run.leaving is not None]:
            await asyncio.wait(leaving)
        if not any(run.path == path and not run.ended for run in others):
            return


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
