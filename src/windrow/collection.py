"""A collection under way: an opened run (or none, for examples), what of the plan is done, and the rest of it run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from windrow.config import as_tree
from windrow.engine.freeze import copied_task
from windrow.engine.run import Control, Progress, Scheduler
from windrow.engine.world import Sink
from windrow.errors import StoreError, UsageError, WindrowError
from windrow.grade.grader import Grader, GradingLog
from windrow.naming import name_of
from windrow.prepare import Prepared
from windrow.records import AttemptId, Grading, Json, Rollout, RolloutGroup, decode_rollout
from windrow.stats.metrics import Metrics, measure, write_metrics
from windrow.store.directory import (
    Fingerprint,
    GradingSink,
    Manifest,
    Redo,
    RolloutSink,
    RunDirectory,
    move_aside,
    new_manifest,
    whole_sizes,
)
from windrow.store.disk import Disk
from windrow.store.fold import expected_scorers, fold, missing_scorers
from windrow.store.read import Place, RunReader, segments
from windrow.store.where import parse_where
from windrow.tasks.plan import Ledger, Plan, Slot, TaskList
from windrow.version import __version__

Warn = Callable[[str], None]
Committed = Callable[[Rollout], Awaitable[None]]


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

    async def commit(self, _: Sequence[Rollout] | Grading) -> None:
        return None


class Collection:
    """One call's work on one run. Made by `open_collection`."""

    def __init__(
        self,
        prepared: Prepared,
        tasks: TaskList,
        *,
        directory: RunDirectory | None = None,
        gate: asyncio.Semaphore | None = None,
        on_warning: Warn | None = None,
    ) -> None:
        run = prepared.run
        self.prepared = prepared
        self.directory = directory
        self.warnings: list[str] = []
        self.plan = Plan(
            tasks,
            samples=run.samples,
            pass_=run.pass_,
            behaviour=prepared.behaviour.hash,
            source=prepared.source.name,
            split=prepared.source.split,
        )
        self.ledger = Ledger(len(self.plan))
        self.to_grade: list[Place] = []
        self.progress = Progress(planned=0)
        self.metrics: Metrics | None = None  # what metrics.json says, once this call has written it
        self._gate = gate
        self._on_warning = on_warning
        self._reader: RunReader | None = None
        self._ungraded = 0
        self._planned_by_agent: Mapping[str, int] = {}
        self._groups: dict[str, dict[int, Rollout]] = {}
        self._earlier: dict[tuple[str, int], Place] = {}
        self._graded_earlier: dict[AttemptId, list[Grading]] = {}
        self._sink: Sink = _Nowhere()
        self._grading_log: GradingLog = _Nowhere()

    @property
    def path(self) -> Path | None:
        return self.directory.path if self.directory else None

    def warn(self, message: str) -> None:
        self.warnings.append(message)
        if self._on_warning is not None:
            self._on_warning(message)

    async def run(
        self, control: Control, on_commit: Committed, on_graded: Callable[[], Awaitable[None]] | None = None
    ) -> Summary:
        """Grade what an earlier call left ungraded, then run what is pending; return when both are durable.

        `on_graded` is awaited after each of the former, `on_commit` after each of the latter.
        """
        self.progress.planned = self.ledger.pending_count
        self.progress.to_grade = len(self.to_grade)
        self._planned_by_agent, self.progress.left = self._by_agent()
        try:
            await self._grade_leftovers(control, on_graded)
            await self._run_pending(control, on_commit)
        except BaseException:
            with contextlib.suppress(StoreError):  # what went wrong first is what is reported
                self._save_counts()
            raise
        self._save_counts()
        return self.summary()

    def summary(self) -> Summary:
        return Summary(
            planned=len(self.plan),
            done=self.ledger.done_count,
            failed=self.ledger.final_failure_count,
            pending=self.ledger.pending_count,
            ungraded=self._ungraded,
            attempts=self.progress.attempts,
        )

    def whole_group(self, rollout: Rollout) -> RolloutGroup | None:
        """The group that this rollout completes, if it does: every sample done, none left ungraded."""
        members = self._groups.setdefault(rollout.group, {})
        if rollout.done:
            members[rollout.sample] = rollout
        for sample in range(self.plan.samples):
            place = self._earlier.get((rollout.group, sample))
            if sample not in members and place is not None:
                members[sample] = self._read(place)
        if len(members) < self.plan.samples:
            return None
        del self._groups[rollout.group]
        rollouts = tuple(members[sample] for sample in range(self.plan.samples))
        if any(member.grade in ("pending", "failed") for member in rollouts):
            return None
        return RolloutGroup(id=rollout.group, task=rollout.task, rollouts=rollouts)

    async def aggregate(self) -> None:
        """Write metrics.json from what is on disk. The rollouts are safe by now: whatever fails here is a warning."""
        if self.directory is None:
            return
        self.progress.phase = "aggregating"
        env = self.prepared.world.env
        found: list[str] = []
        path, disk = self.directory.path, self.directory.disk
        try:
            self.metrics = await asyncio.to_thread(measure, path, envs={name_of(env): env}, warn=found.append)
            await asyncio.to_thread(write_metrics, path, self.metrics, disk)
        except (WindrowError, OSError) as problem:
            found.append(f"no metrics.json: {problem}")
        for message in found:
            self.warn(message)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.__exit__()
        if self.directory is not None:
            self.directory.close()
        self.prepared.source.rows.close()

    # -- running

    def _by_agent(self) -> tuple[dict[str, int], dict[str, int]]:
        """Planned and pending rollouts of each agent; the tasks are read only if some name an agent of their own."""
        world = self.prepared.world
        if not self.prepared.source.row_agents:
            return {world.agent_name: len(self.plan)}, {world.agent_name: self.ledger.pending_count}
        return self.plan.by_agent(self.ledger, lambda task: world.cast(task).agent_name)

    async def _run_pending(self, control: Control, on_commit: Committed) -> None:
        if not self.ledger.pending_count:
            return
        policy = self.prepared.world.policy
        self.progress.phase = "opening"
        try:
            with control.cancellable():
                await policy.open()
            self.progress.phase = "running"
            await self._schedule(control, on_commit)
        except asyncio.CancelledError:
            if not control.absorb():
                raise
        finally:
            await policy.close()

    async def _schedule(self, control: Control, on_commit: Committed) -> None:
        run = self.prepared.run

        async def committed(slot: Slot, rollout: Rollout, settled: bool) -> None:
            self._count(slot, rollout)
            rollout = msgspec.structs.replace(rollout, task=copied_task(slot.task))  # a large row, too
            if rollout.grade == "pending" and not control.cancelled:
                rollout = await self._grade(rollout)
                self.progress.judge(rollout)
            await on_commit(rollout)

        scheduler = Scheduler(
            self.prepared.world,
            self._sink,
            concurrency=self.prepared.concurrency,
            retries=run.retries,
            retry=self.plan.retry,
            progress=self.progress,
            control=control,
            on_commit=committed,
            gate=self._gate,
        )
        await scheduler.run(self.plan.pending(self.ledger))

    def _count(self, slot: Slot, rollout: Rollout) -> None:
        """Only what is committed counts as done."""
        self._ungraded += rollout.grade in ("pending", "failed")
        if rollout.done:
            self.ledger.mark_done(slot.number)
        else:
            again = rollout.error is None or rollout.error.retryable
            self.ledger.mark_tried(slot.number, slot.attempt, again=again)

    # -- grading

    async def _grade_leftovers(
        self, control: Control, on_graded: Callable[[], Awaitable[None]] | None
    ) -> None:
        """Judge from the record what is on disk and not graded; bounded, and cut short by a stop."""
        if not self.to_grade:
            return
        self.progress.phase = "grading"
        places = iter(self.to_grade)

        async def work() -> None:
            for place in places:
                if control.stopping:
                    return
                try:
                    with control.cancellable():
                        await self._grade(self._read(place))
                    self.progress.graded += 1
                    if on_graded is not None:
                        await on_graded()
                except asyncio.CancelledError:
                    if not control.absorb():
                        raise

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.prepared.concurrency, len(self.to_grade))):
                    group.create_task(work())
        except* WindrowError as problems:
            raise problems.exceptions[0] from None

    async def _grade(self, rollout: Rollout) -> Rollout:
        """The rollout with the verdicts it lacked, each of them durable."""
        grading = self.prepared.grading
        if grading is None:
            return rollout
        expected = expected_scorers(grading.of, rollout.env)
        missing = missing_scorers(rollout, expected)
        gradings = await self._grader(grading).grade(rollout, missing)
        graded = fold(rollout, gradings, active=grading.hash, expected=expected)
        if (rollout.group, rollout.sample) in self._earlier:  # it will be read again, with its group
            self._graded_earlier.setdefault((rollout.id, rollout.attempt), []).extend(gradings)
        self._ungraded -= graded.grade not in ("pending", "failed")
        return graded

    def _grader(self, grading: Fingerprint) -> Grader:
        return Grader(
            self.prepared.scorers,
            self._grading_log,
            fingerprint=grading.hash,
            generation=grading.generation,
            timeout_s=self.prepared.run.limits.score_timeout_s,
        )

    def _read(self, place: Place) -> Rollout:
        assert self._reader is not None
        return self._reader.folded(self._reader.read(place), self._graded_earlier)

    # -- resuming

    def resume(self, directory: RunDirectory, *, redo: Redo | None) -> None:
        """Learn from the log what is done, what was tried, and what is to be graded."""
        self._sink = RolloutSink(directory.open_rollouts(), self.prepared.redactor)
        self._grading_log = GradingSink(directory.open_scores(), self.prepared.redactor)
        reader = self._reader = RunReader(directory.path)
        self._graded_earlier = reader.gradings()
        positions = {self.plan.group(position): position for position in range(len(self.plan.tasks))}
        samples = self.plan.samples

        def number_of(group: str, sample: int) -> int | None:
            position = positions.get(group)
            return None if position is None or sample >= samples else position * samples + sample

        highest: dict[int, int] = {}
        for _, head in reader.heads():
            number = number_of(head.group, head.sample)
            if number is None:
                continue
            if redo is not None:
                highest[number] = max(head.attempt, highest.get(number, 0))
            if head.done:
                self.ledger.mark_done(number)
            else:
                again = head.error is None or head.error.retryable
                self.ledger.mark_tried(number, head.attempt, again=again)
        if redo is not None:
            self._reopen(reader, redo, highest, number_of)
        self.ledger.forget_done_attempts()
        self._find_leftovers(reader, number_of)
        for bad in reader.bad_lines:
            self.warn(
                f"{directory.path / bad.segment}:{bad.number} is not a rollout and is left out: {bad.problem}"
            )
        for torn in directory.torn:
            self.warn(f"a torn last line was set aside in {torn}")

    def _reopen(
        self,
        reader: RunReader,
        redo: Redo,
        highest: Mapping[int, int],
        number_of: Callable[[str, int], int | None],
    ) -> None:
        """`--redo`: what matched among the lines that stood there when it was asked for, and was not done since."""
        where = parse_where(redo.where)
        chosen: set[int] = set()
        for _, rollout in reader.finals(decode_rollout, sizes=redo.sizes):
            folded = reader.folded(reader.with_row(rollout), self._graded_earlier)
            number = number_of(rollout.group, rollout.sample)
            if number is not None and where(msgspec.to_builtins(folded)):
                chosen.add(number)
        for place, head in reader.heads():
            if head.done and place.offset >= redo.sizes.get(place.segment, 0):
                number = number_of(head.group, head.sample)
                if number is not None:
                    chosen.discard(number)
        for number in chosen:
            self.ledger.reopen(number, highest[number])

    def _find_leftovers(self, reader: RunReader, number_of: Callable[[str, int], int | None]) -> None:
        """Settled rollouts that lack a verdict, and those that a group of this call will need."""
        grading = self.prepared.grading
        for place, head in reader.finals():
            number = number_of(head.group, head.sample)
            if number is None or not self.ledger.is_done(number) or not head.done:
                continue
            first = number - head.sample
            if any(self.ledger.is_pending(first + sample) for sample in range(self.plan.samples)):
                self._earlier[head.group, head.sample] = place
            if grading is not None and (head.grading != grading.hash or head.grade in ("pending", "failed")):
                rollout = self._read(place)
                if missing_scorers(rollout, expected_scorers(grading.of, rollout.env)):
                    self.to_grade.append(place)
                self._ungraded += rollout.grade in ("pending", "failed")

    def _save_counts(self) -> None:
        if self.directory is None or self.directory.manifest is None:
            return
        summary = self.summary()
        counts = {
            name: int(getattr(summary, name)) for name in ("planned", "done", "failed", "pending", "ungraded")
        }
        manifest = self.directory.manifest
        finished = summary.pending == 0
        self.directory.write_manifest(
            msgspec.structs.replace(
                manifest,
                counts=counts,
                agents=dict(self._planned_by_agent),
                redo=None if finished else manifest.redo,
            )
        )


def open_collection(
    prepared: Prepared,
    *,
    stored: bool = True,
    overwrite: bool = False,
    redo: str | None = None,
    regrade: bool = False,
    gate: asyncio.Semaphore | None = None,
    on_warning: Warn | None = None,
    disk: Disk | None = None,
) -> Collection:
    """Open (or make) the run directory and find out what is left to do. Refuses what does not fit what is there."""
    if not stored:
        return Collection(prepared, prepared.tasks, gate=gate, on_warning=on_warning)
    if redo is not None:
        parse_where(redo)
    path = prepared.out
    aside = move_aside(path, lock=prepared.run.lock, disk=disk) if overwrite else None
    directory = RunDirectory(path, lock=prepared.run.lock, disk=disk)
    try:
        before = directory.manifest
        manifest = _agreed_manifest(prepared, before, regrade=regrade)
        manifest = msgspec.structs.replace(manifest, redo=_redo(path, manifest, redo))
        if manifest != before:
            directory.write_manifest(manifest)
        file = directory.open_tasks()
        file.adopt(prepared.tasks)
        collection = Collection(prepared, file, directory=directory, gate=gate, on_warning=on_warning)
        if aside is not None:
            collection.warn(f"the old run was moved to {aside}")
        for number in file.bad_lines:
            collection.warn(f"{file.path}:{number} is not a task and is left out")
        _warn_of_changed_code(collection, before)
        collection.resume(directory, redo=manifest.redo)
    except BaseException:
        directory.close()
        raise
    return collection


def _agreed_manifest(prepared: Prepared, before: Manifest | None, *, regrade: bool) -> Manifest:
    """The manifest of this call, if what it would collect is what the directory holds."""
    fresh = new_manifest(
        version=__version__,
        source=prepared.source.name,
        split=prepared.source.split,
        config=as_tree(prepared.run),
        behaviour=prepared.behaviour,
        grading=prepared.grading,
        code=prepared.code,
    )
    if before is None:
        return fresh
    if (before.source, before.split) != (fresh.source, fresh.split):
        raise UsageError(
            f"this run is of source {before.source!r}, split {before.split!r}; the tasks given are of source "
            f"{fresh.source!r}, split {fresh.split!r}. Choose another --out, or set --source and --split"
        )
    if before.behaviour.hash != prepared.behaviour.hash:
        raise UsageError(
            "what shapes the rollouts has changed since this run was begun:\n"
            + _difference(before.behaviour.of, prepared.behaviour.of)
            + "\nChoose another --out for the new settings, or --overwrite to move the old run aside"
        )
    grading = before.grading
    if _hash(before.grading) != _hash(prepared.grading):
        if not regrade:
            raise UsageError(
                "only the grading has changed:\n"
                + _difference(_of(before.grading), _of(prepared.grading))
                + "\n--regrade adds the new scores to the rollouts that are there"
            )
        generation = (before.grading.generation if before.grading else 0) + 1
        grading = (
            msgspec.structs.replace(prepared.grading, generation=generation) if prepared.grading else None
        )
    return msgspec.structs.replace(
        before,
        windrow=fresh.windrow,
        config=fresh.config,
        grading=grading,
        code=fresh.code,
        versions=fresh.versions,
    )


def _redo(path: Path, manifest: Manifest, where: str | None) -> Redo | None:
    """The redo of this call: one that was cut short goes on from where it began."""
    if where is None:
        return None
    if manifest.redo is not None and manifest.redo.where == where:
        return manifest.redo
    return Redo(where, whole_sizes(path, segments(path)))


def _warn_of_changed_code(collection: Collection, before: Manifest | None) -> None:
    for name, found in collection.prepared.code.items():
        known = before.code.get(name) if before else None
        if known is not None and known != found:
            collection.warn(
                f"the source of {name} has changed since the last call and it has no `version`; rollouts made before "
                f"and after are kept in one run. Give it a version if its behaviour changed"
            )


def _difference(old: Mapping[str, Json], new: Mapping[str, Json]) -> str:
    before, after = dict(_leaves(old)), dict(_leaves(new))
    return "\n".join(
        f"  {key}: {before.get(key, '(not set)')} → {after.get(key, '(not set)')}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )


def _leaves(value: Json, prefix: str = "") -> Iterable[tuple[str, Json]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{prefix}[{number}]")
    else:
        yield prefix, value


def _hash(fingerprint: Fingerprint | None) -> str | None:
    return fingerprint.hash if fingerprint else None


def _of(fingerprint: Fingerprint | None) -> dict[str, Json]:
    return fingerprint.of if fingerprint else {}
