"""One rescore: which generation it makes or mends, what it judges, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from windrow.config import services_at
from windrow.construct import scorer_models
from windrow.engine.brakes import Brakes
from windrow.engine.control import Control
from windrow.engine.run import first_of
from windrow.engine.world import GroupScorer
from windrow.errors import UsageError, WindrowError
from windrow.grade.grader import Grader
from windrow.grade.judges import Judges
from windrow.groups import least_members
from windrow.records import Grading, Rollout, RolloutGroup, decode_rollout
from windrow.rescoring.generations import Done, known_generation
from windrow.rescoring.scorers import loaded_again, scorers_again
from windrow.scoring import grading_of
from windrow.secrets import Redactor
from windrow.services.plan import given_addresses
from windrow.stats.metrics import survey, write_metrics
from windrow.store.directory import (
    Fingerprint,
    GradingSink,
    Rescore,
    RunDirectory,
    generations_of,
    next_generation,
    whole_sizes,
    with_generation,
)
from windrow.store.fold import GRADABLE, expected_scorers, fold, is_ungraded, missing_scorers
from windrow.store.gradings import Gradings
from windrow.store.judgements import Judgements
from windrow.store.read import RunReader, segments
from windrow.store.where import parse_where

AT_A_TIME = 256  # rollouts that are judged side by side, alone or in groups; their verdicts share a write

Warn = Callable[[str], None]


class RescoreProgress(msgspec.Struct):
    """`read` of `total` rollouts are looked at, `chosen` of them to be judged, `judged` by this call."""

    total: int
    read: int = 0
    chosen: int = 0
    judged: int = 0
    failed: int = 0
    tokens: int = 0
    in_flight: int = 0
    short: int = 0  # groups with too few samples to be judged together
    example: str = ""  # why the first one failed


class Rescored(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended. `failed` gradings could not be made, and the same call tries them again."""

    generation: int
    chosen: int  # rollouts that were to be judged, also by calls that this one went on with
    judged: int
    failed: int
    example: str  # why the first of them failed
    short: int  # groups that were left out: they have too few samples to be judged together
    whole: bool  # every rollout of the run has its verdicts
    active: bool


async def rescore(
    run: str | Path,
    *,
    scorers: Sequence[str | Callable[..., Any]] | None = None,
    where: str | None = None,
    failed_only: bool = False,
    config: str | Path | Sequence[str | Path] = (),
    sets: Sequence[str] = (),
    activate: bool = True,
    control: Control | None = None,
    on_progress: Callable[[RescoreProgress], None] | None = None,
    on_warning: Warn | None = None,
    **options: Any,
) -> Rescored:
    """Judge the rollouts of a run again; `options` are the command's flags with underscores (`judge`, `budget_tokens`, …)."""
    files = [config] if isinstance(config, str | Path) else list(config)
    if scorers is not None:
        options["scorers"] = [scorer for scorer in scorers if isinstance(scorer, str)]
    functions = [scorer for scorer in scorers or () if not isinstance(scorer, str)]
    with Rescoring(
        Path(run),
        where=where,
        failed_only=failed_only,
        functions=functions,
        files=files,
        options=options,
        sets=sets,
    ) as rescoring:
        return await rescoring.run(
            control or Control(), activate=activate, on_progress=on_progress, warn=on_warning or _ignored
        )


class Rescoring:
    """A rescore of one run, which is locked meanwhile."""

    def __init__(
        self,
        path: Path,
        *,
        where: str | None,
        failed_only: bool,
        functions: Sequence[Callable[..., Any]],
        files: Sequence[str | Path],
        options: Mapping[str, Any],
        sets: Sequence[str],
    ) -> None:
        if where is not None:
            parse_where(where)
        self._reader = RunReader(path)
        before = self._reader.manifest
        self.loaded = loaded_again(before, files, options, sets)
        self._redactor = Redactor()
        anew = "scorers" in options or self.loaded.run.scorers != loaded_again(before, (), {}, ()).run.scorers
        with services_at(given_addresses(self.loaded.run)):  # none is started here
            self._scorers = scorers_again(before, self.loaded, functions, anew=anew)
            self._models = scorer_models(self._scorers, self.loaded.run, self._redactor)
        self._together = [scorer.name for scorer in self._scorers if isinstance(scorer, GroupScorer)]
        self._alone = [scorer.name for scorer in self._scorers if scorer.name not in self._together]
        self._least = least_members(self._reader.samples, self.loaded.run.min_group)
        grading = grading_of(self._scorers, self._models)
        if grading is None:
            raise UsageError(f"{path} is graded by no scorers; name some with --scorer")
        self._directory = RunDirectory(path, lock=self.loaded.run.lock)
        try:
            self._scores = self._directory.open_scores()
            self._mark = self._begin(grading, where, failed_only)
        except BaseException:
            self.close()
            raise
        self._selects = _selection(self._reader, where, failed_only)

    def __enter__(self) -> Rescoring:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader.__exit__()
        self._directory.close()

    async def run(
        self,
        control: Control,
        *,
        activate: bool,
        on_progress: Callable[[RescoreProgress], None] | None,
        warn: Warn,
    ) -> Rescored:
        run = self.loaded.run
        progress = RescoreProgress(sum(1 for _ in self._reader.finals()))
        if on_progress is not None:
            on_progress(progress)
        brakes = Brakes(control, budget=run.budget, max_failure_rate=None)
        judges = Judges(
            self._models,
            call_timeout_s=run.limits.call_timeout_s,
            concurrency=run.judge_concurrency,
            judgements=(
                Judgements(self._directory.open_judgements(), self._redactor) if self._models else None
            ),
            blobs=self._directory.blobs,
        )
        judges.on_usage = brakes.paid
        brakes.start()
        try:
            with control.cancellable():
                await judges.open(warn)
                await self._judge_all(judges, control, progress, on_progress)
        except asyncio.CancelledError:
            if not control.absorb():
                raise
        finally:
            brakes.release()
            await judges.close()
        return await self._end(control, progress, activate=activate, warn=warn)

    # -- which generation

    def _begin(self, grading: Fingerprint, where: str | None, failed_only: bool) -> Rescore:
        """The rescore that this call goes on with, or a new one; it is marked in the manifest."""
        manifest = self._directory.manifest
        assert manifest is not None
        code = {
            f"scorer {scorer.name}": str(source)
            for scorer in self._scorers
            if getattr(scorer, "version", None) is None and (source := getattr(scorer, "source", None))
        }
        active = manifest.grading
        same = active is not None and active.hash == grading.hash
        in_place = self._in_place = same and (where is not None or failed_only)
        going = manifest.rescore
        if (
            going is not None
            and (going.hash, going.where, going.failed_only, going.code)
            == (grading.hash, where, failed_only, code)
            and not (in_place and active is not None and going.generation != active.generation)
        ):
            self._target = known_generation(manifest, going.generation)
            return going
        if failed_only and not same:
            raise UsageError(
                "--failed-only is for the scorers that the run has; leave --scorer out, or judge all rollouts with the new ones"
            )
        self._target = active if in_place and active is not None else next_generation(manifest, grading)
        mark = Rescore(
            hash=grading.hash,
            generation=self._target.generation,
            where=where,
            failed_only=failed_only,
            code=code,
            since=whole_sizes(self._directory.path, segments(self._directory.path, "scores")),
        )
        manifest = with_generation(manifest, self._target, active=False)
        self._directory.write_manifest(msgspec.structs.replace(manifest, rescore=mark))
        return mark

    # -- judging

    async def _judge_all(
        self,
        judges: Judges,
        control: Control,
        progress: RescoreProgress,
        on_progress: Callable[[RescoreProgress], None] | None,
    ) -> None:
        grader = Grader(
            self._scorers,
            judges,
            GradingSink(self._scores, self._redactor),
            fingerprint=self._target.hash,
            generation=self._target.generation,
            timeout_s=self.loaded.run.limits.score_timeout_s,
        )
        done = Done(self._reader, self._mark)
        gradings = self._reader.gradings(self._target)
        units = self._units(done, progress)

        async def work() -> None:
            for unit in units:
                if control.stopping:
                    return
                progress.in_flight += 1
                await self._judge(unit, grader, done, gradings, progress)
                progress.in_flight -= 1
                if on_progress is not None:
                    on_progress(progress)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._units_at_a_time()):
                    group.create_task(work())
        except* WindrowError as problems:
            raise first_of(problems) from None

    def _units_at_a_time(self) -> int:
        samples = self._reader.samples if self._together else 1
        return max(1, int(AT_A_TIME // samples))

    async def _judge(
        self,
        unit: list[Rollout],
        grader: Grader,
        done: Done,
        gradings: Gradings,
        progress: RescoreProgress,
    ) -> None:
        """A rollout, or a group: each of its rollouts, then all together."""

        async def alone(rollout: Rollout) -> Rollout:
            expected = self._wanted(rollout, gradings, done) if self._in_place else self._expected(rollout)
            wanted = [name for name in self._alone if name in expected and not done.has(name, rollout.key)]
            made = await grader.grade(rollout, wanted)
            _count(progress, made)
            return self._folded(rollout, [*gradings.of(rollout.key), *made]) if self._together else rollout

        if not self._together:
            await alone(*unit)
            return
        async with asyncio.TaskGroup() as each:
            judged = [each.create_task(alone(rollout)) for rollout in unit]
        await self._judge_together([task.result() for task in judged], grader, done, progress)

    def _expected(self, rollout: Rollout) -> tuple[str, ...]:
        return expected_scorers(self._target.of, rollout.env)

    def _wanted(self, rollout: Rollout, gradings: Gradings, done: Done) -> tuple[str, ...]:
        """Who judges a rollout again whose other verdicts stand: nobody, where it is only another's fellow."""
        if not self._chosen(rollout, done):
            return ()
        if not self._mark.failed_only:
            return self._expected(rollout)
        known = gradings.of(rollout.key)
        return missing_scorers(self._folded(rollout, known), self._expected(rollout), known)

    async def _judge_together(
        self, seen: Sequence[Rollout], grader: Grader, done: Done, progress: RescoreProgress
    ) -> None:
        expected = self._expected(seen[0])
        group = RolloutGroup(id=seen[0].group, task=seen[0].task, rollouts=tuple(seen))
        members = tuple(rollout.key for rollout in seen)
        for name in self._together:
            if name in expected and not done.has(name, members):
                made = await grader.grade_group(group, (name,))
                _count(progress, made)
                folded = tuple(self._folded(rollout, made) for rollout in group.rollouts)
                group = msgspec.structs.replace(group, rollouts=folded)

    def _folded(self, rollout: Rollout, gradings: Sequence[Grading]) -> Rollout:
        return fold(rollout, gradings, active=self._target.hash, expected=self._expected(rollout))

    def _units(self, done: Done, progress: RescoreProgress) -> Iterator[list[Rollout]]:
        """The rollouts that are to be judged: each by itself, or the members of a group together."""
        if not self._together:
            for _, found in self._reader.finals(decode_rollout):
                progress.read += 1
                if found.status in GRADABLE and not found.opponent:
                    rollout = self._reader.with_row(found)
                    if self._chosen(rollout, done):
                        progress.chosen += 1
                        yield [rollout]
            return
        for _, rollouts in groupby(self._reader.ordered(), lambda rollout: rollout.task.index):
            groups: dict[str, list[Rollout]] = {}
            for rollout in rollouts:
                progress.read += 1
                judged = rollout.status in GRADABLE and not rollout.opponent
                if judged and rollout.sample < self._reader.samples:
                    groups.setdefault(rollout.group, []).append(rollout)
            for members in groups.values():
                if len({rollout.sample for rollout in members}) < self._least:
                    progress.short += 1
                elif any(self._chosen(rollout, done) for rollout in members):
                    progress.chosen += len(members)
                    yield members

    def _chosen(self, rollout: Rollout, done: Done) -> bool:
        """What this rescore has begun is judged to its end: its first verdicts may be why it is selected no more."""
        return self._selects(rollout) or any(done.has(name, rollout.key) for name in self._alone)

    # -- the end

    async def _end(
        self, control: Control, progress: RescoreProgress, *, activate: bool, warn: Warn
    ) -> Rescored:
        """What came of it; a whole generation becomes the active one."""
        manifest = self._directory.manifest
        assert manifest is not None
        finished = not control.stopping and not progress.failed
        whole = finished and self._mark.where is None
        active = manifest.grading == self._target or (activate and whole)
        if active:
            manifest = with_generation(manifest, self._target)
        elif finished and not progress.chosen:  # there is nothing in it
            left = [known for known in generations_of(manifest) if known != self._target]
            manifest = msgspec.structs.replace(manifest, generations=left)
        self._directory.write_manifest(
            msgspec.structs.replace(manifest, rescore=None if finished else self._mark)
        )
        if active and not control.stopping:
            try:
                path = self._directory.path
                measured = await asyncio.to_thread(survey, path, warn=warn)
                await asyncio.to_thread(write_metrics, path, measured, self._directory.disk)
            except (WindrowError, OSError) as problem:
                warn(f"no metrics.json: {problem}")
        return Rescored(
            generation=self._target.generation,
            chosen=progress.chosen,
            judged=progress.judged,
            failed=progress.failed,
            short=progress.short,
            example=self._redactor.text(progress.example),
            whole=whole,
            active=active,
        )


def _count(progress: RescoreProgress, gradings: Sequence[Grading]) -> None:
    for grading in gradings:
        progress.judged += len(grading.members)
        if grading.error is not None:
            progress.failed += 1
            progress.example = progress.example or grading.error.message
        if grading.usage is not None:
            progress.tokens += grading.usage.prompt_tokens + grading.usage.completion_tokens


def _selection(reader: RunReader, where: str | None, failed_only: bool) -> Callable[[Rollout], bool]:
    """Which rollouts are to be judged, by the scores that count now."""
    if where is None and not failed_only:
        return lambda rollout: True
    condition = parse_where(where) if where is not None else None
    gradings = reader.gradings()

    def selects(rollout: Rollout) -> bool:
        folded = reader.folded(rollout, gradings)
        if failed_only and not is_ungraded(folded):
            return False
        return condition is None or condition(msgspec.to_builtins(folded))

    return selects


def _ignored(message: str) -> None:
    pass
