"""A collection: an opened run (or none, for examples), its plan, and how much of the plan is done."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from windrow.collecting.compatibility import redo_under_way, with_rank
from windrow.collecting.resolve import ResolvedRun
from windrow.engine.commit_queue import Sink
from windrow.engine.progress import Progress
from windrow.envs.scoring import GroupScorer
from windrow.errors import WindrowError
from windrow.grading.groups import GroupTracker
from windrow.records import Rollout
from windrow.stats.metrics import Metrics, measure_run, unchanged_metrics, write_metrics
from windrow.store.judgements import Judgements
from windrow.store.rank_progress import RankShare, collecting, share_of
from windrow.store.reader import RunReader
from windrow.store.resume import ResumeState
from windrow.store.run_directory import RunDirectory
from windrow.store.sinks import GradingSink
from windrow.tasks.plan import Ledger, Plan, Slot, TaskList
from windrow.tasks.sharding import Part

BAD_LINES_SHOWN = 10

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


class UnstoredSink:
    """The sink of a run that is not stored."""

    async def commit(self, _: Sequence[Rollout]) -> None:
        return None


class Collection:
    """An opened run and what is left of its plan. `open_collection` makes one, `execute` runs it."""

    def __init__(
        self,
        resolved: ResolvedRun,
        tasks: TaskList,
        *,
        directory: RunDirectory | None = None,
        semaphore: asyncio.Semaphore | None = None,
        groups: bool = False,
        on_warning: Warn | None = None,
    ) -> None:
        """With `groups`, whole groups are wanted, also with members that earlier calls have left."""
        run, rank = resolved.run, resolved.rank
        self.resolved = resolved
        self.directory = directory
        self.semaphore = semaphore
        self.warnings: list[str] = []
        self.whole_plan = _plan(resolved, tasks)  # of all ranks
        self.plan = (
            _plan(resolved, Part(tasks, rank.positions(len(tasks)))) if rank is not None else self.whole_plan
        )
        self.progress = Progress(planned=0)
        self.metrics: Metrics | None = None  # of metrics.json, without its tasks, once it is written
        self._on_warning = on_warning
        self._planned_by_agent: Mapping[str, int] = {}
        groups = groups or any(isinstance(scorer, GroupScorer) for scorer in resolved.run_scorers.scorers)
        self.sink: Sink = UnstoredSink()
        self.grading_sink: GradingSink | None = None
        self.judgements: Judgements | None = None
        self.resume_state = ResumeState(self.plan)
        if directory is not None:
            self._resume(directory, groups=groups)
        self.groups = (
            GroupTracker(self.resume_state, samples=run.samples, min_group=run.min_group) if groups else None
        )

    @property
    def path(self) -> Path | None:
        return self.directory.path if self.directory else None

    @property
    def ledger(self) -> Ledger:
        return self.resume_state.ledger

    @property
    def to_grade(self) -> int:
        """How many rollouts of earlier calls lack a verdict, and how many groups."""
        return len(self.resume_state.ungraded_lines) + self.resume_state.ungraded_group_count

    @property
    def short_groups(self) -> int:
        """How many groups could not be judged together because too few of their samples are there."""
        return self.groups.short if self.groups is not None else 0

    def warn(self, message: str) -> None:
        message = self.resolved.redactor.text(message)
        self.warnings.append(message)
        if self._on_warning is not None:
            self._on_warning(message)

    def warn_of_lines(self, messages: Iterable[str]) -> None:
        """Warn of bad lines: the first few, and how many more there are."""
        remaining = iter(messages)
        for message in itertools.islice(remaining, BAD_LINES_SHOWN):
            self.warn(message)
        if more := sum(1 for _ in remaining):
            self.warn(f"{more:,} more such lines are left out")

    def start_counting(self) -> None:
        """Set the counts of a call that begins."""
        self.progress.planned = self.ledger.pending_count
        self.progress.to_grade = self.to_grade
        self._planned_by_agent, self.progress.left = self._by_agent()

    async def add(self, slot: Slot, rollout: Rollout) -> None:
        """Commit an attempt that was made elsewhere, and count it; return when it is durable."""
        await self.sink.commit((rollout,))
        if self.groups is not None:
            self.groups.touch(slot)
        self.resume_state.add_attempt(slot, (rollout,))

    def save(self) -> Summary:
        """Write into run.json how far the run is."""
        self._planned_by_agent = self._by_agent()[0]
        self.save_counts()
        return self.summary()

    def summary(self) -> Summary:
        return Summary(
            planned=len(self.plan),
            done=self.ledger.done_count,
            failed=self.ledger.final_failure_count,
            pending=self.ledger.pending_count,
            ungraded=self.resume_state.ungraded_count,
            attempts=self.progress.attempts,
        )

    async def aggregate(self) -> None:
        """Write metrics.json from what is on disk. The rollouts are safe by now: whatever fails here is a warning."""
        if self.directory is None:
            return
        self.progress.begin("aggregating")
        warnings: list[str] = []
        try:
            self.metrics = await asyncio.to_thread(self._measure, self.directory, warnings.append)
        except (WindrowError, OSError) as problem:
            warnings.append(f"no metrics.json: {problem}")
        for message in warnings:
            self.warn(message)

    def _measure(self, directory: RunDirectory, warn: Warn) -> Metrics:
        """The metrics that stand in metrics.json, where they are of the run as it is now; else new ones."""
        envs = self.resolved.envs
        with directory.locks.measuring() if directory.locks is not None else contextlib.nullcontext():
            metrics = unchanged_metrics(directory.path, envs=envs)
            if metrics is None:
                measured = measure_run(directory.path, envs=envs, warn=warn)
                write_metrics(directory.path, measured, directory.disk)
                metrics = measured.metrics
        return metrics

    def close(self) -> None:
        for service in self.resolved.services:
            service.release()
        self.resume_state.close()
        if self.directory is not None:
            self.directory.close()
        self.resolved.source.rows.close()

    def save_counts(self) -> None:
        if self.directory is None or self.directory.manifest is None:
            return
        summary = self.summary()
        counts = {
            name: int(getattr(summary, name)) for name in ("planned", "done", "failed", "pending", "ungraded")
        }
        with self.directory.shared_files_locked():
            manifest = msgspec.structs.replace(self.directory.manifest, agents=dict(self._planned_by_agent))
            if self.resolved.rank is None:
                manifest = msgspec.structs.replace(manifest, counts=counts)
            else:
                share = RankShare(counts=counts, redo=redo_under_way(self.resolved, manifest))
                manifest = with_rank(manifest, self.resolved.rank.number, share, len(self.whole_plan))
            self.directory.write_manifest(manifest)

    def end_redo(self) -> None:
        """Write into run.json that a redo is finished, if one was under way and nothing is left of it.

        This is the last write of a call: after a kill before it, the same command goes on with what is missing.
        """
        if self.directory is None or self.directory.manifest is None or self.summary().pending:
            return
        with self.directory.shared_files_locked():
            manifest = self.directory.manifest
            if redo_under_way(self.resolved, manifest) is None:
                return
            if self.resolved.rank is None:
                manifest = msgspec.structs.replace(manifest, redo=None)
            else:
                number = self.resolved.rank.number
                share = share_of(collecting(manifest.ranks), number)
                manifest = with_rank(manifest, number, msgspec.structs.replace(share, redo=None))
            self.directory.write_manifest(manifest)

    def _by_agent(self) -> tuple[dict[str, int], dict[str, int]]:
        """Planned rollouts and pending slots of each agent; the tasks are read only if they say something of that."""
        resolved, context = self.resolved, self.resolved.context
        if not (resolved.source.row_agents or resolved.matches or resolved.agent_names):
            return {context.agent_name: len(self.whole_plan)}, {context.agent_name: self.ledger.pending_count}
        planned, left = self.plan.by_agent(self.ledger, context.agents)
        if self.whole_plan is not self.plan:
            planned, _ = self.whole_plan.by_agent(Ledger(len(self.whole_plan)), context.agents)
        return planned, left

    def _resume(self, directory: RunDirectory, *, groups: bool) -> None:
        """Open the logs, and learn from them what earlier calls have done."""
        assert directory.manifest is not None
        log = directory.open_rollouts()
        reader = RunReader(directory.path)
        self.resume_state = ResumeState(
            self.plan, reader, groups=groups, indexed=True, writer=directory.writer
        )
        self.resume_state.read_logs(
            directory.manifest.grading, redo_under_way(self.resolved, directory.manifest)
        )
        self.warn_of_lines(
            f"{directory.path / bad.segment}:{bad.number} is not a rollout and is left out: {bad.problem}"
            for bad in reader.bad_lines
        )
        self.warn_of_lines(f"run again: {problem}" for problem in self.resume_state.unreadable_lines)
        self.resume_state.save_indexes(directory.disk)
        self.sink = directory.rollout_sink(self.resolved.redactor, self.resume_state.indexes[log.path.name])
        self.resume_state.indexes.clear()
        self.grading_sink = GradingSink(
            directory.open_scores(), self.resolved.redactor, reader.latest_lamport
        )
        if self.resolved.run_scorers.models:
            self.judgements = Judgements(directory.open_judgements(), self.resolved.redactor)


def _plan(resolved: ResolvedRun, tasks: TaskList) -> Plan:
    run = resolved.run
    return Plan(
        tasks,
        samples=run.samples,
        pass_=run.pass_,
        behaviour=resolved.behaviour.hash,
        split=resolved.source.split,
    )
