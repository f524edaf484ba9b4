"""One rescore of a run, from its lock to its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from windrow.config import services_at
from windrow.engine.control import Control
from windrow.engine.stop_conditions import StopConditions
from windrow.errors import UsageError, WindrowError
from windrow.grading.grader import Grader
from windrow.grading.judges import Judges
from windrow.grading.rescoring.judging import Judging
from windrow.grading.rescoring.progress import RescoreProgress
from windrow.grading.rescoring.resume import start
from windrow.grading.rescoring.scorers import loaded_again, scorers_again
from windrow.grading.rescoring.selection import Selection, count_slots
from windrow.grading.run_scorers import grading_of
from windrow.grading.scorer_models import scorer_models
from windrow.services.plan import given_addresses
from windrow.stats.metrics import measure_run, write_metrics
from windrow.store.judgements import Judgements
from windrow.store.manifest import generations_of, with_generation
from windrow.store.reader import RunReader
from windrow.store.run_directory import RunDirectory
from windrow.store.sinks import GradingSink
from windrow.store.where import parse_where
from windrow.util.redaction import Redactor

Warn = Callable[[str], None]
OnProgress = Callable[[RescoreProgress], None]


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
    on_progress: OnProgress | None = None,
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
        grading = grading_of(self._scorers, self._models)
        if grading is None:
            raise UsageError(f"{path} is graded by no scorers; name some with --scorer")
        self._directory = RunDirectory(path, lock=self.loaded.run.lock)
        try:
            self._scores = self._directory.open_scores()
            started = start(self._directory, grading, self._scorers, where=where, failed_only=failed_only)
            self._mark, self._target = started.mark, started.target
            self._selection = Selection(self._reader, self._scorers, started, self.loaded.run.min_group)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Rescoring:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader.__exit__()
        self._directory.close()

    async def run(
        self, control: Control, *, activate: bool, on_progress: OnProgress | None, warn: Warn
    ) -> Rescored:
        progress = RescoreProgress(0 if on_progress is None else count_slots(self._reader))
        if on_progress is not None:
            on_progress(progress)
        stop_conditions = StopConditions(control, budget=self.loaded.run.budget, max_failure_rate=None)
        judges = self._judges()
        judges.on_usage = stop_conditions.add_usage
        stop_conditions.start()
        try:
            with control.cancellable():
                await judges.open(warn)
                await self._judging(judges, control, progress, on_progress).run()
        except asyncio.CancelledError:
            if not control.absorb():
                raise
        finally:
            stop_conditions.release()
            await judges.close()
        return await self._end(control, progress, activate=activate, warn=warn)

    def _judges(self) -> Judges:
        run = self.loaded.run
        judgements = None
        if self._models:
            judgements = Judgements(self._directory.open_judgements(), self._redactor)
        return Judges(
            self._models,
            call_timeout_s=run.limits.call_timeout_s,
            concurrency=run.judge_concurrency,
            judgements=judgements,
            blobs=self._directory.blobs,
        )

    def _judging(
        self, judges: Judges, control: Control, progress: RescoreProgress, on_progress: OnProgress | None
    ) -> Judging:
        log = GradingSink(self._scores, self._redactor)
        grader = Grader(
            self._scorers,
            judges,
            log,
            fingerprint=self._target.hash,
            generation=self._target.generation,
            timeout_s=self.loaded.run.limits.score_timeout_s,
        )
        samples = self._reader.samples
        return Judging(self._selection, grader, log, control, progress, on_progress, samples=samples)

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
            await self._measure(warn)
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

    async def _measure(self, warn: Warn) -> None:
        path = self._directory.path
        try:
            measured = await asyncio.to_thread(measure_run, path, warn=warn)
            await asyncio.to_thread(write_metrics, path, measured, self._directory.disk)
        except (WindrowError, OSError) as problem:
            warn(f"no metrics.json: {problem}")


def _ignored(message: str) -> None:
    pass
