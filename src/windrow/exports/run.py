"""`windrow.export`: the rollouts of a run through an exporter into a file."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from windrow.errors import ExportError, UsageError
from windrow.exports.base import Example, Exporter, Invalid, Unfit, Writer
from windrow.exports.selection import Selection
from windrow.records import Rollout
from windrow.registry import resolve
from windrow.store.reader import load
from windrow.util.atomic_files import atomic_files

# As texts, so that no format pays for the imports of another.
BUILT_IN = {
    "sft": "windrow.exports.sft:Sft",
    "parquet": "windrow.exports.parquet:Parquet",
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What an export did. `left_out` counts rollouts by why; `invalid` those whose record contradicts itself, and
    `first_invalid` has the id of the first of each."""

    to: str
    out: str
    rollouts: int
    exported: int
    rows: int
    left_out: dict[str, int]
    invalid: dict[str, int]
    first_invalid: dict[str, str]
    notes: dict[str, int]


def export(
    run: str | Path,
    *,
    to: str,
    out: str | Path,
    where: str | None = None,
    min_reward: float | None = None,
    best_of_group: bool = False,
    failed: bool = False,
    overwrite: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Report:
    """Write the final attempts of `run` to the file `out` in the format `to`, in the order of `windrow.load`.

    The same run gives the same bytes. `out` is there whole or not at all, and not before the files beside it. Failed and cancelled rollouts are left out
    unless `failed`, or the format takes them. Other keywords are the exporter's settings. `on_progress` is called after every
    rollout with how many are read and how many exported. Raises ExportError if nothing is left to write.
    """
    exporter = make_exporter(to, settings)
    every = exporter.every_attempt
    selection = Selection(
        where=where,
        min_reward=min_reward,
        best_of_group=best_of_group,
        failed=failed or every or exporter.takes_failed,
    )
    rollouts = load(run, attempts="all" if every else "final")
    path = exporter.place(Path(out), Path(run))
    with atomic_files([path, *exporter.beside(path)], overwrite=overwrite) as (file, *beside):
        writer = exporter.open(file)
        exporter.begin(Path(run), beside)
        work = _Work(exporter, writer, selection, on_progress)
        try:
            work.through(rollouts)
            writer.close()
        except BaseException:
            writer.discard()
            raise
        report = work.report(to, path)
        if not report.rows:
            raise ExportError(_nothing(run, report))
    return report


def make_exporter(name: str, settings: Mapping[str, Any]) -> Exporter:
    """The exporter called `name`. A setting that it does not take is refused."""
    exporter = resolve("exporter", name, BUILT_IN)
    if not (isinstance(exporter, type) and issubclass(exporter, Exporter)):
        raise UsageError(f"exporter {name!r} is not a class derived from windrow.Exporter")
    try:
        inspect.signature(exporter).bind(**settings)
    except TypeError as problem:
        raise UsageError(f"exporter {name!r}: {problem} (it takes: {_settings_of(exporter)})") from None
    return exporter(**settings)


class _Work:
    """One export under way."""

    def __init__(
        self,
        exporter: Exporter,
        writer: Writer,
        selection: Selection,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self._exporter = exporter
        self._writer = writer
        self._selection = selection
        self._on_progress = on_progress
        self._exported = self._rows = 0
        self._invalid: Counter[str] = Counter()
        self._first_invalid: dict[str, str] = {}

    def through(self, rollouts: Iterable[Rollout]) -> None:
        for example in self._selection.examples(self._watched(rollouts), groups=self._exporter.needs_groups):
            self._write(example)
        for row in self._exporter.rest():
            self._writer.write(row)
            self._rows += 1

    def _watched(self, rollouts: Iterable[Rollout]) -> Iterator[Rollout]:
        for number, rollout in enumerate(rollouts, 1):
            yield rollout
            if self._on_progress is not None:
                self._on_progress(number, self._exported)

    def _write(self, example: Example) -> None:
        try:
            rows = list(self._exporter.rows(example))  # all of a rollout's, or none
        except Invalid as problem:
            self._invalid[str(problem)] += 1
            self._first_invalid.setdefault(str(problem), example.rollout.id)
            return
        except Unfit as problem:
            self._selection.left_out[str(problem)] += 1
            return
        except ExportError:
            raise
        except Exception as problem:
            what = f"{type(self._exporter).__name__} raised {type(problem).__name__}: {problem}"
            raise ExportError(
                f"{what}, given the rollout {example.rollout.id} (--debug shows where)"
            ) from problem
        for row in rows:
            self._writer.write(row)
        self._exported += 1
        self._rows += len(rows)

    def report(self, to: str, out: Path) -> Report:
        return Report(
            to=to,
            out=str(out),
            rollouts=self._selection.seen,
            exported=self._exported,
            rows=self._rows,
            left_out={why: count for why, count in self._selection.left_out.items() if count},
            invalid=dict(self._invalid),
            first_invalid=self._first_invalid,
            notes=dict(self._exporter.notes),
        )


def reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {why}" for why, count in counts.items())


def _nothing(run: str | Path, report: Report) -> str:
    if not report.rollouts:
        return f"{run} has no rollouts, so {report.out} was not written"
    left_out = reasons({**report.left_out, **report.invalid})
    return f"nothing of {run} is left to export ({left_out}), so {report.out} was not written"


def _settings_of(exporter: type[Exporter]) -> str:
    return ", ".join(inspect.signature(exporter).parameters) or "no settings"
