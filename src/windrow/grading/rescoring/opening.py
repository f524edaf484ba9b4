"""Opening a run for a rescore: its configuration, the scorers, the lock, and which rescore the call goes on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from windrow.config import services_at
from windrow.errors import UsageError
from windrow.grading.rescoring.resume import begin_or_resume
from windrow.grading.rescoring.scorers import rescore_config, rescore_scorers
from windrow.grading.rescoring.selection import Selection
from windrow.grading.run_scorers import RunScorers, grading_fingerprint
from windrow.grading.scorer_models import scorer_models
from windrow.services.plan import given_addresses
from windrow.store.judgements import Judgements
from windrow.store.reader import RunReader
from windrow.store.run_directory import RunDirectory
from windrow.store.sinks import GradingSink
from windrow.store.trust import RunTrust
from windrow.store.where import parse_where
from windrow.util.redaction import Redactor


class OpenRescore:
    """A run that is open for one rescore, and locked until `close`."""

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
        trust_run: bool,
    ) -> None:
        if where is not None:
            parse_where(where)
        self.reader = RunReader(path)
        self.redactor = Redactor()
        manifest = self.reader.manifest
        self.trust = RunTrust(path, manifest, given=trust_run)
        loaded = rescore_config(manifest, self.trust, files, options, sets)
        self.run = loaded.run
        as_recorded = rescore_config(manifest, self.trust, (), {}, ())
        anew = "scorers" in options or self.run.scorers != as_recorded.run.scorers
        with services_at(given_addresses(self.run)):  # none is started here
            scorers = rescore_scorers(manifest, self.trust, loaded, functions, anew=anew)
            models = scorer_models(scorers, self.run, self.redactor)
        grading = grading_fingerprint(scorers, models)
        if grading is None:
            raise UsageError(f"{path} is graded by no scorers; name some with --scorer")
        self.scorers = RunScorers(scorers=scorers, models=models, fingerprint=grading.hash)
        self.directory = RunDirectory(path, lock=self.run.lock)
        try:
            scores = self.directory.open_scores()
            self.log = GradingSink(scores, self.redactor, self.reader.latest_lamport)
            target = begin_or_resume(self.directory, grading, scorers, where=where, failed_only=failed_only)
            self.mark, self.generation = target.mark, target.generation
            self.selection = Selection(self.reader, scorers, target, self.run.min_group)
        except BaseException:
            self.close()
            raise

    def open_judgements(self) -> Judgements | None:
        """The replies that judges have given; None if no scorer asks one."""
        if not self.scorers.models:
            return None
        return Judgements(self.directory.open_judgements(), self.redactor)

    def __enter__(self) -> OpenRescore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.reader.__exit__()
        self.directory.close()
