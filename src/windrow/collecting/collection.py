"""A collection under way: an opened run (or none, for examples), what of the plan is done, and the rest of it run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from windrow.collecting.compatibility import (
    changed_code,
    check_compatible,
    redo_under_way,
    refuse_sharing,
    with_rank,
)
from windrow.collecting.delivery import Committed, Delivery, Listeners
from windrow.collecting.resolve import ResolvedRun
from windrow.engine.adaptive_limit import AdaptiveLimit
from windrow.engine.commit_queue import Finished, OnDurable
from windrow.engine.context import GroupScorer, Sink
from windrow.engine.control import Control
from windrow.engine.outcome import Outcome
from windrow.engine.progress import Progress
from windrow.engine.scheduler import Scheduler
from windrow.engine.slot_queue import Name, SlotQueue
from windrow.engine.stop_conditions import StopConditions
from windrow.errors import StoreError, WindrowError
from windrow.grading.grading_pass import GradingStage, Grouped, Progressed
from windrow.grading.groups import Groups
from windrow.records import Rollout
from windrow.registry import name_of
from windrow.services import serving
from windrow.stats.metrics import Metrics, survey, unchanged_metrics, write_metrics
from windrow.store.folding import is_ungraded
from windrow.store.judgements import Judgements
from windrow.store.rank_progress import RankShare
from windrow.store.reader import RunReader
from windrow.store.resume import ResumeState
from windrow.store.run_directory import (
    GradingSink,
    RunDirectory,
    move_aside,
)
from windrow.store.where import parse_where
from windrow.tasks.plan import Ledger, Plan, Slot, TaskList, retried
from windrow.tasks.selection import changed_blocks
from windrow.tasks.sharding import Part
from windrow.util.descriptors import make_room
from windrow.util.disk import Disk
from windrow.util.guard import watch_with
from windrow.workers.pool import Workers, shares_of

BAD_LINES_TOLD = 10

Warn = Callable[[str], None]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended. `done` of `planned` slots are settled; `failed` are not and will not be tried again."""

    planned: int
    done: int
    failed: int
    pending: int
    ungraded: int
    attempts: int

    @property
    def complete(self) -> bool:
        return self.done == self.planned and not self.ungraded


class _Nowhere:
    """The store of a run that is not stored."""

    async def commit(self, _: Sequence[Rollout]) -> None:
        return None


class Collection:
    """One call's work on one run. Made by `open_collection`."""

    def __init__(
        self,
        resolved: ResolvedRun,
        tasks: TaskList,
        *,
        directory: RunDirectory | None = None,
        gate: asyncio.Semaphore | None = None,
        groups: bool = False,
        on_warning: Warn | None = None,
    ) -> None:
        run, rank = resolved.run, resolved.rank
        self.resolved = resolved
        self.directory = directory
        self.warnings: list[str] = []
        self.whole_plan = _plan(resolved, tasks)  # of all ranks
        self.plan = (
            _plan(resolved, Part(tasks, rank.positions(len(tasks)))) if rank is not None else self.whole_plan
        )
        self.progress = Progress(planned=0)
        self.metrics: Metrics | None = None  # what metrics.json says but for the tasks, once it is written
        self._gate = gate
        self._on_warning = on_warning
        self._planned_by_agent: Mapping[str, int] = {}
        judges_groups = any(isinstance(scorer, GroupScorer) for scorer in resolved.judging.scorers)
        self._sink: Sink = _Nowhere()
        self._resume_state = ResumeState(self.plan)
        if directory is not None:
            self._resume(directory, groups=groups or judges_groups)
        self._groups = (
            Groups(self._resume_state, samples=run.samples, min_group=run.min_group)
            if groups or judges_groups
            else None
        )
        self._stage = self._grading_stage()

    @property
    def path(self) -> Path | None:
        return self.directory.path if self.directory else None

    @property
    def ledger(self) -> Ledger:
        return self._resume_state.ledger

    @property
    def to_grade(self) -> int:
        """How many rollouts of earlier calls lack a verdict, and how many groups."""
        return len(self._resume_state.to_grade) + self._resume_state.unjudged_group_count

    @property
    def short_groups(self) -> int:
        """Groups that could not be judged together, since too few of their samples are there."""
        return self._groups.short if self._groups is not None else 0

    def warn(self, message: str) -> None:
        self.warnings.append(message)
        if self._on_warning is not None:
            self._on_warning(message)

    def warn_of_lines(self, messages: Iterable[str]) -> None:
        """Warn of bad lines: the first few, and how many more there are."""
        told = iter(messages)
        for message in itertools.islice(told, BAD_LINES_TOLD):
            self.warn(message)
        if more := sum(1 for _ in told):
            self.warn(f"{more:,} more such lines are left out")

    async def run(
        self,
        control: Control,
        on_commit: Committed | None = None,
        on_progress: Progressed | None = None,
        on_group: Grouped | None = None,
    ) -> Summary:
        """Grade what an earlier call left ungraded, then run what is pending; return when both are durable.

        `on_progress` is awaited after each of both, `on_commit` before it with each rollout of this call, and `on_group`
        with each group that is whole and graded now (asked for with `groups`).
        """
        watch_with(self.warn)
        self.progress.planned = self.ledger.pending_count
        self.progress.to_grade = self.to_grade
        self._planned_by_agent, self.progress.left = self._by_agent()
        run = self.resolved.run
        stop_conditions = StopConditions(control, budget=run.budget, max_failure_rate=run.max_failure_rate)
        self._stage.judges.on_usage = stop_conditions.paid
        listeners = Listeners(on_commit, on_progress, on_group)
        stop_conditions.start()
        try:
            if self.to_grade or self.ledger.pending_count:
                async with self._served(control, listeners):
                    await self._grade_and_run(control, stop_conditions, listeners)
        except BaseException:
            with contextlib.suppress(StoreError):  # what went wrong first is what is reported
                self._save_counts()
            raise
        finally:
            stop_conditions.release()
        self._save_counts()
        return self.summary()

    async def add(self, slot: Slot, rollout: Rollout) -> None:
        """Commit an attempt that was made elsewhere, and count it; return when it is durable."""
        await self._sink.commit((rollout,))
        self._count(slot, (rollout,))

    def save(self) -> Summary:
        """Write down in run.json how far the run is."""
        self._planned_by_agent = self._by_agent()[0]
        summary = self.summary()
        self._save_counts()
        return summary

    def summary(self) -> Summary:
        return Summary(
            planned=len(self.plan),
            done=self.ledger.done_count,
            failed=self.ledger.final_failure_count,
            pending=self.ledger.pending_count,
            ungraded=self._resume_state.ungraded,
            attempts=self.progress.attempts,
        )

    async def aggregate(self) -> None:
        """Write metrics.json from what is on disk. The rollouts are safe by now: whatever fails here is a warning."""
        if self.directory is None:
            return
        self.progress.phase = "aggregating"
        found: list[str] = []
        try:
            self.metrics = await asyncio.to_thread(self._measure, self.directory, found.append)
        except (WindrowError, OSError) as problem:
            found.append(f"no metrics.json: {problem}")
        for message in found:
            self.warn(message)

    def _measure(self, directory: RunDirectory, warn: Warn) -> Metrics:
        """The metrics that stand in metrics.json, where they are of the run as it is now; else new ones."""
        env = self.resolved.context.env
        envs = {name_of(env): env}
        with directory.locks.measuring() if directory.locks is not None else contextlib.nullcontext():
            metrics = unchanged_metrics(directory.path, envs=envs)
            if metrics is None:
                measured = survey(directory.path, envs=envs, warn=warn)
                write_metrics(directory.path, measured, directory.disk)
                metrics = measured.metrics
        return metrics

    def close(self) -> None:
        for service in self.resolved.services:
            service.release()
        self._resume_state.close()
        if self.directory is not None:
            self.directory.close()
        self.resolved.source.rows.close()

    # -- running

    def _by_agent(self) -> tuple[dict[str, int], dict[str, int]]:
        """Planned rollouts and pending slots of each agent; the tasks are read only if they say something of that."""
        resolved, context = self.resolved, self.resolved.context
        if not (resolved.source.row_agents or resolved.matches or resolved.called):
            return {context.agent_name: len(self.whole_plan)}, {context.agent_name: self.ledger.pending_count}
        planned, left = self.plan.by_agent(self.ledger, context.agents)
        if self.whole_plan is not self.plan:
            planned, _ = self.whole_plan.by_agent(Ledger(len(self.whole_plan)), context.agents)
        return planned, left

    @contextlib.asynccontextmanager
    async def _served(self, control: Control, listeners: Listeners) -> AsyncIterator[None]:
        """Inside, the run's services are up, unless it is stopped while they are awaited."""

        async def waiting(names: Sequence[str]) -> None:
            self.progress.phase, self.progress.waiting_for = "serving", tuple(names)
            if listeners.on_progress is not None:
                await listeners.on_progress()

        if not self.resolved.services:
            yield
            return
        assert self.directory is not None
        logs, redactor = self.directory.path / "services", self.resolved.redactor
        if self.resolved.rank is not None:
            logs /= str(self.directory.writer)
        async with serving(
            self.resolved.services, logs, control=control, redactor=redactor, on_waiting=waiting
        ):
            yield

    async def _grade_and_run(
        self, control: Control, stop_conditions: StopConditions, listeners: Listeners
    ) -> None:
        if self.resolved.services and control.stopping:  # there may be nobody to ask
            return
        async with self._stage.open(control, self.warn):
            await self._grade_leftovers(control, listeners)
            await self._run_pending(control, stop_conditions, listeners)

    async def _grade_leftovers(self, control: Control, listeners: Listeners) -> None:
        if self.to_grade:
            self.progress.phase = "grading"
            await self._stage.grade_leftovers(
                control, self.progress, listeners.on_progress, listeners.on_group
            )

    async def _run_pending(
        self, control: Control, stop_conditions: StopConditions, listeners: Listeners
    ) -> None:
        if not self.ledger.pending_count:
            return
        self.progress.phase = "opening"
        try:
            if self.resolved.run.workers > 1:  # each of them opens a world of its own
                await self._schedule(control, stop_conditions, listeners)
            else:
                await self._run_here(control, stop_conditions, listeners)
        finally:
            self.progress.end()

    async def _run_here(
        self, control: Control, stop_conditions: StopConditions, listeners: Listeners
    ) -> None:
        context = self.resolved.context
        if too_few := make_room(self.resolved.concurrency):
            self.warn(too_few)
        try:
            with control.cancellable():
                await context.open(self.warn)
            self.progress.run()
            await self._schedule(control, stop_conditions, listeners)
        except asyncio.CancelledError:
            if not control.absorb():
                raise
        finally:
            await context.close()

    async def _schedule(
        self, control: Control, stop_conditions: StopConditions, listeners: Listeners
    ) -> None:
        """Run what is pending, as fast as the endpoint, the limits and who is told allow."""
        delivery = Delivery(
            self._stage,
            self._groups,
            progress=self.progress,
            stop_conditions=stop_conditions,
            control=control,
            listeners=listeners,
        )
        placement = self._workers if self.resolved.run.workers > 1 else self._scheduler
        await placement(control, stop_conditions, delivery).run(self._waiting())
        await delivery.rest()

    def _scheduler(self, control: Control, stop_conditions: StopConditions, delivery: Delivery) -> Scheduler:
        """The episodes run in this process."""
        run = self.resolved.run
        return Scheduler(
            self.resolved.context,
            self._sink,
            pace=AdaptiveLimit(self.resolved.concurrency, adaptive=run.concurrency == "auto"),
            retries=run.retries,
            progress=self.progress,
            control=control,
            on_durable=self._on_durable(delivery),
            deliver=delivery.deliver,
            spent=stop_conditions.spent,
            gate=self._gate,
        )

    def _workers(self, control: Control, stop_conditions: StopConditions, delivery: Delivery) -> Workers:
        """The episodes run in processes of their own."""
        assert self.directory is not None
        return Workers(
            self.resolved.spec,
            self.directory.path,
            shares=shares_of(self.resolved.concurrency, self.resolved.run.workers),
            writer=self.directory.writer,
            wants_rollouts=delivery.wants_rollouts,
            progress=self.progress,
            control=control,
            on_durable=self._on_durable(delivery),
            deliver=delivery.deliver,
            spent=stop_conditions.spent,
            warn=self.warn,
        )

    def _waiting(self) -> SlotQueue:
        run, context = self.resolved.run, self.resolved.context
        limits = {("env", name): most for name, most in run.env_concurrency.items()}
        limits |= {("agent", name): most for name, most in run.agent_concurrency.items()}

        def names(slot: Slot) -> tuple[Name, ...]:
            setup = context.episode_setup(slot.task)
            return ("env", setup.env_name), ("agent", setup.agent_name)

        pending = self.plan.pending(self.ledger)

        def following() -> Slot | None:
            slot = next(pending, None)
            while slot is not None and self._resume_state.is_judged(slot):
                slot = retried(slot)
            return slot

        return SlotQueue(following, limits=limits, names=names)

    def _on_durable(self, delivery: Delivery) -> OnDurable:
        def on_durable(batch: Sequence[Finished]) -> Sequence[Finished]:
            for slot, outcomes, _, _ in batch:
                self._count(slot, outcomes)
            return delivery.on_durable(batch)

        return on_durable

    def _count(self, slot: Slot, outcomes: Sequence[Outcome]) -> None:
        """Only what is committed counts as done."""
        if self._groups is not None:
            self._groups.touch(slot)
        for outcome in outcomes:
            self._resume_state.ungraded += is_ungraded(outcome)
        first = outcomes[0]  # the seats of an episode are done together, or fail together
        if first.done:
            self.ledger.mark_done(slot.number)
        else:
            again = first.error is None or first.error.retryable
            self.ledger.mark_tried(slot.number, slot.attempt, again=again)

    # -- the run directory

    def _resume(self, directory: RunDirectory, *, groups: bool) -> None:
        """Open the logs, and learn from them what earlier calls have done."""
        assert directory.manifest is not None
        log = directory.open_rollouts()
        self.resolved.context.blobs = directory.blobs
        reader = RunReader(directory.path)
        self._resume_state = ResumeState(
            self.plan, reader, groups=groups, indexed=True, writer=directory.writer
        )
        self._resume_state.learn(
            directory.manifest.grading, redo_under_way(self.resolved, directory.manifest)
        )
        self.warn_of_lines(
            f"{directory.path / bad.segment}:{bad.number} is not a rollout and is left out: {bad.problem}"
            for bad in reader.bad_lines
        )
        self.warn_of_lines(f"run again: {problem}" for problem in self._resume_state.lost)
        self._resume_state.save_indexes(directory.disk)
        self._sink = directory.rollout_sink(self.resolved.redactor, self._resume_state.indexes[log.path.name])
        self._resume_state.indexes.clear()

    def _grading_stage(self) -> GradingStage:
        stored: dict[str, Any] = {"grading": self.resolved.grading}
        if self.directory is not None and self.directory.manifest is not None:
            redactor = self.resolved.redactor
            stored["grading"] = self.directory.manifest.grading
            stored["log"] = GradingSink(self.directory.open_scores(), redactor)
            if self.resolved.judging.models:
                stored["judgements"] = Judgements(self.directory.open_judgements(), redactor)
        return GradingStage(
            self.resolved.judging,
            self.resolved.run,
            self._resume_state,
            self._groups,
            concurrency=self.resolved.concurrency,
            blobs=self.resolved.context.blobs,
            **stored,
        )

    def _save_counts(self) -> None:
        if self.directory is None or self.directory.manifest is None:
            return
        summary = self.summary()
        counts = {
            name: int(getattr(summary, name)) for name in ("planned", "done", "failed", "pending", "ungraded")
        }
        with self.directory.agreeing():
            manifest = msgspec.structs.replace(self.directory.manifest, agents=dict(self._planned_by_agent))
            redo = redo_under_way(self.resolved, manifest) if summary.pending else None
            if self.resolved.rank is None:
                manifest = msgspec.structs.replace(manifest, counts=counts, redo=redo)
            else:
                share = RankShare(counts=counts, redo=redo)
                manifest = with_rank(manifest, self.resolved.rank.number, share, len(self.whole_plan))
            self.directory.write_manifest(manifest)


def _plan(resolved: ResolvedRun, tasks: TaskList) -> Plan:
    run = resolved.run
    return Plan(
        tasks,
        samples=run.samples,
        pass_=run.pass_,
        behaviour=resolved.behaviour.hash,
        split=resolved.source.split,
    )


def open_collection(
    resolved: ResolvedRun,
    *,
    stored: bool = True,
    overwrite: bool = False,
    redo: str | None = None,
    regrade: bool = False,
    groups: bool = False,
    gate: asyncio.Semaphore | None = None,
    on_warning: Warn | None = None,
    disk: Disk | None = None,
) -> Collection:
    """Open (or make) the run directory and find out what is left to do. Refuses what does not fit what is there.

    With `groups`, whole groups are given out, also with members that earlier calls have left.
    """
    if not stored:
        return Collection(resolved, resolved.tasks, gate=gate, on_warning=on_warning)
    if redo is not None:
        parse_where(redo)
    refuse_sharing(resolved, overwrite=overwrite)
    path, rank = resolved.out, resolved.rank
    aside = move_aside(path, lock=resolved.run.lock, disk=disk) if overwrite else None
    directory = RunDirectory(
        path, rank=rank.number if rank is not None else None, lock=resolved.run.lock, disk=disk
    )
    try:
        with directory.agreeing():
            before = directory.manifest
            as_told, resolved = resolved, resolved.continuing(before)
            check_compatible(resolved, directory, regrade=regrade, redo=redo)
            file = directory.open_tasks()
            file.adopt(resolved.tasks)
            if resolved.scan_index is not None:
                resolved.scan_index.save(path, directory.disk)
        collection = Collection(
            resolved, file, directory=directory, gate=gate, groups=groups, on_warning=on_warning
        )
        if rank is not None:
            collection.save()
        for message in changed_blocks(resolved.draw, as_told.draw):
            collection.warn(message)
        if aside is not None:
            collection.warn(f"the old run was moved to {aside}")
        collection.warn_of_lines(
            f"{file.path}:{number} is not a task and is left out" for number in file.bad_lines
        )
        for message in changed_code(resolved, before):
            collection.warn(message)
        for torn in directory.torn:
            collection.warn(f"a torn last line was set aside in {torn}")
    except BaseException:
        directory.close()
        raise
    return collection
