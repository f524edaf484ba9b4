"""Merging runs into one. The result is the same in whatever order they are merged.

The merged run is a function of the set of lines in the inputs. Merging again changes nothing, and merging in steps gives
the same run as merging at once. The new files are written beside the old ones, then replace them all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from windrow.errors import StoreError, UsageError
from windrow.store.log import torn_name
from windrow.store.manifest import MANIFEST, Manifest, is_run
from windrow.store.merging.blobs import copy_blobs
from windrow.store.merging.counting import Measurer, Warn, write_counts
from windrow.store.merging.input_scan import Scan, UnreadableLine
from windrow.store.merging.inputs import Input, OpenFiles, Segment
from windrow.store.merging.manifests import joined, missing_ranks, notes
from windrow.store.merging.writing import MOST_EXAMPLES, WRITE_BYTES, MergedWriter
from windrow.store.run_directory import RunDirectory
from windrow.store.signing import signed, tasks_digest, unsigned
from windrow.util.directory_swap import DirectorySwap
from windrow.util.disk import Disk, is_private


class MergeProgress(msgspec.Struct):
    """`phase` is reading, writing, counting or copying; `total_bytes` are the logs of all inputs."""

    phase: str = "reading"
    total_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    blobs: int = 0


OnProgress = Callable[[MergeProgress], None]


class MergeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the merged run holds. `missing` are ranks, as (rank, number of ranks); `written` are inputs that another
    process was writing."""

    runs: int
    attempts: int
    tasks: int
    gradings: int
    planned: int
    done: int
    ungraded: int
    conflicts: dict[str, int]  # by log: how many lines, or episodes, were set aside
    bad_lines: int
    missing: list[tuple[int, int]]
    written: list[str]

    @property
    def complete(self) -> bool:
        """Whether the run holds every part, as far as the inputs tell."""
        return not (self.missing or self.written)


def merge_runs(
    runs: Sequence[str | Path],
    out: str | Path,
    *,
    measurer: Measurer,
    lock: bool = True,
    on_progress: Callable[[MergeProgress], None] | None = None,
    on_warning: Warn | None = None,
    disk: Disk | None = None,
) -> MergeResult:
    """Merge the runs, and the one at `out` if there is one, into `out`. `measurer` writes the metrics of the result.

    Raises UsageError for runs that are not parts of one run. In that case, and when the disk is full, `out` is unchanged.
    """
    paths = _distinct(Path(run) for run in runs)
    if not paths:
        raise UsageError("name the runs to be merged")
    try:
        return _merge(paths, Path(out), measurer, lock, disk, on_progress or _ignore, on_warning or _ignore)
    except OSError as problem:
        where = f" ({problem.filename})" if problem.filename else ""
        raise StoreError(
            f"cannot merge into {out}: {problem.strerror}{where}. What was there is safe"
        ) from None


def _merge(
    paths: Sequence[Path],
    out: Path,
    measurer: Measurer,
    lock: bool,
    disk: Disk | None,
    on_progress: OnProgress,
    warn: Warn,
) -> MergeResult:
    others = [Input(path) for path in paths if path.resolve() != out.resolve()]
    if others:
        joined([(input.path, input.manifest) for input in others])  # refuse before anything is created
    elif not is_run(out):
        raise UsageError(f"{out} is not a run: it has no {MANIFEST}")
    shared = not any(is_private(input.path) for input in others)  # as private as the most private of them
    directory = RunDirectory(out, lock=lock, shared=shared, disk=disk)
    try:
        target = [Input(out, is_target=True)] if directory.manifest is not None else []
        return _Merge(directory, [*target, *others], measurer, on_progress, warn).run()
    finally:
        directory.close()


class _Merge:
    """One merge into a locked directory."""

    def __init__(
        self,
        directory: RunDirectory,
        inputs: Sequence[Input],
        measurer: Measurer,
        on_progress: OnProgress,
        warn: Warn,
    ) -> None:
        self._path = directory.path
        self._disk = directory.disk
        self._inputs = inputs
        self._measurer = measurer
        self._on_progress = on_progress
        self._warn = warn
        self._named = [(input.path, input.manifest) for input in inputs]
        self._manifest = joined(self._named)
        sizes = [segment.size for input in inputs for segment in input.segments]
        self._progress = MergeProgress(total_bytes=sum(sizes))
        verdicts = any(input.scores or input.conflicts for input in inputs)
        self._scan = Scan(OpenFiles(), self._manifest, self._on_read, verdicts=verdicts)

    def run(self) -> MergeResult:
        swap = DirectorySwap(self._path, self._disk)
        try:
            for input in self._inputs:
                self._scan.take(input)
            self._progress.phase = "writing"
            writer = MergedWriter(self._scan, self._disk, self._on_written)
            counts = writer.write(swap.folder)
            examples = list(writer.examples())
            self._progress.phase = "counting"
            self._on_progress(self._progress)
            self._manifest = write_counts(
                swap.folder,
                self._manifest,
                self._disk,
                measurer=self._measurer,
                agents=self._scan.agents,
                matches=self._scan.seats,
                sign=self._signer(swap.folder),
                warn=self._warn,
            )
            self._copy_blobs()
            self._keep_bad_lines()
            swap.commit(self._files_without_successor(swap.folder))
            self._measurer.moved(self._path)
        except BaseException:
            swap.discard()
            raise
        finally:
            self._scan.files.close()
        self._warn_of_all(examples)
        return MergeResult(
            runs=len(self._inputs),
            attempts=counts.attempts,
            tasks=counts.tasks,
            gradings=counts.gradings,
            planned=self._manifest.counts["planned"],
            done=self._manifest.counts["done"],
            ungraded=self._manifest.counts["ungraded"],
            conflicts=counts.conflicts,
            bad_lines=len(self._scan.bad),
            missing=missing_ranks(self._manifest),
            written=[str(input.path) for input in self._inputs if input.holder is not None],
        )

    # -- the rest of the run

    def _signer(self, folder: Path) -> Callable[[Manifest], Manifest]:
        """Signs the new run.json if every input is this user's, so that no merge makes a foreign run one's own."""
        if not all(input.is_own for input in self._inputs):
            return unsigned
        own_rows = all(input.has_own_tasks for input in self._inputs)
        tasks = tasks_digest(folder) if own_rows else None
        return lambda manifest: signed(manifest, tasks)

    def _copy_blobs(self) -> None:
        """Copy the blobs before the lines that name them are in place."""

        def on_copied() -> None:
            self._progress.blobs += 1
            self._on_progress(self._progress)

        self._progress.phase = "copying"
        for input in self._inputs:
            if not input.is_target:
                copy_blobs(input.path, self._path, self._disk, on_copied=on_copied, warn=self._warn)

    def _target_segments(self) -> list[Segment]:
        """The segments of the run that was at `out` before."""
        return [segment for input in self._inputs if input.is_target for segment in input.segments]

    def _files_without_successor(self, folder: Path) -> set[str]:
        """The files of the run that was at `out` which the new run does not replace by name: their lines are in other
        files now."""
        names = {segment.path.name for segment in self._target_segments()} | self._measurer.files
        return names - {file.name for file in folder.iterdir()}

    def _keep_bad_lines(self) -> None:
        """Copy the unreadable lines of the run that was at `out` to torn/. The other runs keep theirs."""
        for segment in self._target_segments():
            lost = [(bad.offset, bad.size) for bad in self._scan.bad if bad.path == segment.path]
            if segment.tail:
                lost.append((segment.size, segment.tail))
            if lost:
                self._disk.replace(torn_name(segment.path, self._disk), _cut_out(segment.path, lost))

    # -- progress and warnings

    def _on_read(self, size: int) -> None:
        before = self._progress.read_bytes // WRITE_BYTES
        self._progress.read_bytes += size
        if self._progress.read_bytes // WRITE_BYTES > before:
            self._on_progress(self._progress)

    def _on_written(self, size: int) -> None:
        self._progress.written_bytes += size
        self._on_progress(self._progress)

    def _warn_of_all(self, examples: Sequence[str]) -> None:
        for message in (*examples, *notes(self._named, self._manifest)):
            self._warn(message)
        for input in self._inputs:
            if input.holder is not None:
                self._warn(
                    f"{input.path} is being written by {input.holder}: merged up to its last whole line. Merge again when "
                    f"it is done"
                )
        _warn_of_some(self._warn, self._scan.bad)


def _warn_of_some(warn: Warn, bad: Sequence[UnreadableLine]) -> None:
    for line in bad[:MOST_EXAMPLES]:
        warn(f"{line.path}:{line.number} cannot be read and is left out: {line.problem}")
    if len(bad) > MOST_EXAMPLES:
        warn(f"{len(bad) - MOST_EXAMPLES:,} more such lines are left out")


def _cut_out(path: Path, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    with path.open("rb") as file:
        for offset, size in ranges:
            file.seek(offset)
            yield file.read(size)


def _distinct(paths: Iterable[Path]) -> list[Path]:
    """Each directory once, by its resolved path."""
    return list({path.resolve(): path for path in paths}.values())


def _ignore(_: object) -> None:
    pass
