"""`windrow merge`: one run made of several, which is the same whatever their order.

The merged run is a function of the set of lines that the inputs hold. So merging again changes nothing, and merging in
steps gives what merging at once does. It is written beside what is there, and put in its place whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from windrow.errors import StoreError, UsageError
from windrow.stats.cache import CACHE, confirm_cache
from windrow.stats.metrics import METRICS
from windrow.store.log import torn_name
from windrow.store.merging.blobs import copy_blobs
from windrow.store.merging.counting import count
from windrow.store.merging.input_scan import Bad, Scan
from windrow.store.merging.inputs import Files, Input
from windrow.store.merging.manifests import joined, missing_ranks, notes
from windrow.store.merging.writing import TOLD, WRITE_BYTES, Writer
from windrow.store.run_directory import MANIFEST, RunDirectory
from windrow.util.directory_swap import DirectorySwap, is_unfinished
from windrow.util.disk import Disk

Warn = Callable[[str], None]


class MergeProgress(msgspec.Struct):
    """`phase` is reading, writing, counting or copying; `total_bytes` are the logs of all inputs."""

    phase: str = "reading"
    total_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    blobs: int = 0


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the merged run. `missing` ranks are (rank, of so many); `written` are inputs that were being written."""

    runs: int
    attempts: int
    tasks: int
    gradings: int
    planned: int
    done: int
    ungraded: int
    conflicts: dict[str, int]  # by log: lines, or episodes, that are set aside
    bad_lines: int
    missing: list[tuple[int, int]]
    written: list[str]

    @property
    def complete(self) -> bool:
        """Whether every part is in it, as far as anybody knows."""
        return not (self.missing or self.written)


def merge(
    runs: Sequence[str | Path],
    out: str | Path,
    *,
    lock: bool = True,
    on_progress: Callable[[MergeProgress], None] | None = None,
    on_warning: Warn | None = None,
    disk: Disk | None = None,
) -> Merged:
    """Merge the runs, and the one at `out` if there is one, into `out`.

    Raises UsageError for runs that are not parts of one; then, and if the disk is full, `out` is as it was.
    """
    paths = _distinct(Path(run) for run in runs)
    if not paths:
        raise UsageError("name the runs to be merged")
    try:
        return _merged(paths, Path(out), lock, disk, on_progress or _ignored, on_warning or _ignored)
    except OSError as problem:
        where = f" ({problem.filename})" if problem.filename else ""
        raise StoreError(
            f"cannot merge into {out}: {problem.strerror}{where}. What was there is safe"
        ) from None


def _merged(
    paths: Sequence[Path],
    out: Path,
    lock: bool,
    disk: Disk | None,
    tell: Callable[[MergeProgress], None],
    warn: Warn,
) -> Merged:
    others = [Input(path) for path in paths if path.resolve() != out.resolve()]
    if others:
        joined([(input.path, input.manifest) for input in others])  # refused before anything is made
    elif not (out / MANIFEST).exists() and not is_unfinished(out):
        raise UsageError(f"{out} is not a run: it has no {MANIFEST}")
    directory = RunDirectory(out, lock=lock, disk=disk)
    try:
        own = [Input(out, own=True)] if directory.manifest is not None else []
        return _Merge(directory, [*own, *others], tell, warn).run()
    finally:
        directory.close()


class _Merge:
    """One merge into a directory that is locked."""

    def __init__(
        self,
        directory: RunDirectory,
        inputs: Sequence[Input],
        tell: Callable[[MergeProgress], None],
        warn: Warn,
    ) -> None:
        self._path = directory.path
        self._disk = directory.disk
        self._inputs = inputs
        self._own = [input for input in inputs if input.own]
        self._tell = tell
        self._warn = warn
        self._named = [(input.path, input.manifest) for input in inputs]
        self._manifest = joined(self._named)
        sizes = [segment.size for input in inputs for segment in input.segments]
        self._progress = MergeProgress(total_bytes=sum(sizes))
        verdicts = any(input.scores or input.conflicts for input in inputs)
        self._scan = Scan(Files(), self._manifest, self._read, verdicts=verdicts)

    def run(self) -> Merged:
        swap = DirectorySwap(self._path, self._disk)
        try:
            for input in self._inputs:
                self._scan.take(input)
            self._progress.phase = "writing"
            writer = Writer(self._scan, self._disk, self._wrote)
            counts = writer.write(swap.folder)
            examples = list(writer.examples())
            self._progress.phase = "counting"
            self._tell(self._progress)
            self._manifest = count(
                swap.folder,
                self._manifest,
                self._disk,
                agents=self._scan.agents,
                matches=self._scan.seats,
                warn=self._warn,
            )
            self._copy_blobs()
            self._keep_bad_lines()
            swap.commit(self._gone(swap.folder))
            confirm_cache(self._path)
        except BaseException:
            swap.discard()
            raise
        finally:
            self._scan.files.close()
        self._warn_of_all(examples)
        return Merged(
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

    def _copy_blobs(self) -> None:
        """Before the lines that name them are in place."""

        def copied() -> None:
            self._progress.blobs += 1
            self._tell(self._progress)

        self._progress.phase = "copying"
        for input in self._inputs:
            if not input.own:
                copy_blobs(input.path, self._path, self._disk, copied=copied, warn=self._warn)

    def _gone(self, folder: Path) -> set[str]:
        """The files of the run that was there which have no successor: their lines stand in the new ones."""
        names = {segment.path.name for input in self._own for segment in input.segments} | {METRICS, CACHE}
        return names - {file.name for file in folder.iterdir()}

    def _keep_bad_lines(self) -> None:
        """What cannot be read of the run that was there goes to torn/; that of the other runs stays where it is."""
        for segment in (segment for input in self._own for segment in input.segments):
            lost = [(bad.offset, bad.size) for bad in self._scan.bad if bad.path == segment.path]
            if segment.tail:
                lost.append((segment.size, segment.tail))
            if lost:
                self._disk.replace(torn_name(segment.path, self._disk), _cut_out(segment.path, lost))

    # -- telling

    def _read(self, size: int) -> None:
        before = self._progress.read_bytes // WRITE_BYTES
        self._progress.read_bytes += size
        if self._progress.read_bytes // WRITE_BYTES > before:
            self._tell(self._progress)

    def _wrote(self, size: int) -> None:
        self._progress.written_bytes += size
        self._tell(self._progress)

    def _warn_of_all(self, examples: Sequence[str]) -> None:
        for message in (*examples, *notes(self._named, self._manifest)):
            self._warn(message)
        for input in self._inputs:
            if input.holder is not None:
                self._warn(
                    f"{input.path} is being written by {input.holder}: merged up to its last whole line. Merge again when "
                    f"it is done"
                )
        _tell_some(self._warn, self._scan.bad)


def _tell_some(warn: Warn, bad: Sequence[Bad]) -> None:
    for line in bad[:TOLD]:
        warn(f"{line.path}:{line.number} cannot be read and is left out: {line.problem}")
    if len(bad) > TOLD:
        warn(f"{len(bad) - TOLD:,} more such lines are left out")


def _cut_out(path: Path, places: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    with path.open("rb") as file:
        for offset, size in places:
            file.seek(offset)
            yield file.read(size)


def _distinct(paths: Iterable[Path]) -> list[Path]:
    """Each directory once, however it is spelt."""
    return list({path.resolve(): path for path in paths}.values())


def _ignored(_: object) -> None:
    pass
