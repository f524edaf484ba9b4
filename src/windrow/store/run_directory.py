"""The run directory as its writer sees it: the lock, the manifest, the tasks, the logs.

Everything in it is written under a lock, and everything that is replaced is replaced whole.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from windrow.errors import StoreError, UsageError
from windrow.records import SCHEMA_VERSION, Grading, Json, Rollout, encode
from windrow.registry import BRIDGES
from windrow.store.blobs import FOLDER as BLOBS
from windrow.store.blobs import BlobStore
from windrow.store.line_heads import decode_head, whole_episodes
from windrow.store.lock import Lock
from windrow.store.locks import RANK, Locks
from windrow.store.log import Log, Whole
from windrow.store.rank_progress import Ranks, Redo
from windrow.store.resume_index import SegmentIndex, load_index
from windrow.store.task_file import TaskFile
from windrow.tasks.sampling import Draw
from windrow.util.directory_swap import DRAFT, finish_swap, is_unfinished
from windrow.util.disk import Disk
from windrow.util.redaction import Redactor

MANIFEST = "run.json"
TASKS = "tasks.jsonl"


class Fingerprint(msgspec.Struct, frozen=True):
    """A hash and what it is of, so that a difference can be shown. `generation` counts the changes."""

    hash: str
    of: dict[str, Json]
    generation: int = 1


class Rescore(msgspec.Struct, frozen=True):
    """A `windrow rescore` under way: its grading, the generation that it makes, of what, by which code; and how long
    the logs of gradings were when it began."""

    hash: str
    generation: int
    where: str | None
    failed_only: bool
    code: dict[str, str]
    since: dict[str, int]


class _Schema(msgspec.Struct, frozen=True):
    """What every version of run.json says of itself."""

    schema: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """run.json. `config` is as given, `${VAR}` unexpanded; `agents` are the planned rollouts of each.

    A generation is one way of grading the run; its verdicts stand in scores.jsonl beside those of the others.
    """

    schema: int = SCHEMA_VERSION
    windrow: str
    created_at: float
    source: str
    split: str | None
    config: dict[str, Json]
    behaviour: Fingerprint
    grading: Fingerprint | None  # the active generation
    generations: list[Fingerprint] = []  # all that there are, by number
    rescore: Rescore | None = None  # one under way
    code: dict[str, str] = {}
    redo: Redo | None = None
    draws: list[Draw] = []  # how the tasks of each pass were chosen, where some were left out
    versions: dict[str, str] = {}
    counts: dict[str, int] = {}
    agents: dict[str, int] = {}
    ranks: list[Ranks] = []  # those that share its tasks; of a merged run, all that ever did


def generations_of(manifest: Manifest) -> list[Fingerprint]:
    """All generations of a run, by number; what an older version wrote has only its active one."""
    return manifest.generations or ([manifest.grading] if manifest.grading else [])


def next_generation(manifest: Manifest, grading: Fingerprint) -> Fingerprint:
    """A generation of this grading that the run does not have yet."""
    number = max((known.generation for known in generations_of(manifest)), default=0) + 1
    return msgspec.structs.replace(grading, generation=number)


def with_generation(manifest: Manifest, generation: Fingerprint | None, *, active: bool = True) -> Manifest:
    """The manifest with one generation more, if it is new, which is made the active one."""
    known = generations_of(manifest)
    new = [generation] if generation is not None and generation not in known else []
    return msgspec.structs.replace(
        manifest,
        grading=generation if active else manifest.grading,
        generations=[*known, *new],
    )


class RunDirectory:
    """An open run directory, locked by this process. `writer` names this writer's own segments of the logs.

    A rank shares it with others: what is not its own it reads and writes inside `agreeing`.
    """

    def __init__(
        self,
        path: Path,
        *,
        writer: str | None = None,
        rank: int | None = None,
        lock: bool = True,
        disk: Disk | None = None,
    ) -> None:
        self.path = path
        self.disk = disk or Disk()
        self.rank = rank
        self.writer = writer if rank is None else f"{RANK}{rank}"
        self._logs: list[Log] = []
        self._tasks: TaskFile | None = None
        self._index: SegmentIndex | None = None
        self.blobs = BlobStore(path, self.disk)
        self.locks: Locks | None = None
        try:
            refuse_strangers(path)
            if not (path / MANIFEST).exists():
                self.disk.make_directory(path)
            self.locks = Locks(path, self.writer, rank) if lock else None
            if self.writer is None:
                finish_swap(path, self.disk)
            self.manifest = read_manifest(path) if (path / MANIFEST).exists() else None
        except BaseException as problem:
            self.close()
            if isinstance(problem, OSError):
                raise StoreError(f"cannot write in {path}: {problem.strerror}") from None
            raise

    @contextlib.contextmanager
    def agreeing(self) -> Iterator[None]:
        """Inside, no other rank reads or writes what all share: run.json, which is read anew, and tasks.jsonl."""
        with self.locks.agreeing() if self.locks is not None else contextlib.nullcontext():
            if self.rank is not None:
                finish_swap(self.path, self.disk)
            if self.rank is not None and (self.path / MANIFEST).exists():
                self.manifest = read_manifest(self.path)
            yield

    def write_manifest(self, manifest: Manifest) -> None:
        data = msgspec.json.format(encode(manifest), indent=2) + b"\n"
        try:
            self.disk.replace(self.path / MANIFEST, data)
        except OSError as problem:
            raise StoreError(f"cannot write {self.path / MANIFEST}: {problem.strerror}") from None
        self.manifest = manifest

    def open_tasks(self) -> TaskFile:
        self._tasks = TaskFile(self._open_log(TASKS), self.path / TASKS, self.disk)
        return self._tasks

    def open_rollouts(self) -> Log:
        return self._open_log(self._segment("rollouts"), whole_episodes)

    def rollout_sink(self, redactor: Redactor, index: SegmentIndex | None = None) -> RolloutSink:
        """For the rollouts of this writer. The index of its segment, read anew unless given, is kept up to date."""
        log = self.open_rollouts()
        self._index = index or load_index(self.path, log.path.name)
        return RolloutSink(log, redactor, self.blobs, self._index, self.disk)

    def open_scores(self) -> Log:
        return self._open_log(self._segment("scores"))

    def open_judgements(self) -> Log:
        return self._open_log(self._segment("judgements"))

    @property
    def torn(self) -> list[Path]:
        """Tails that were cut off when the logs were opened."""
        return [log.torn for log in self._logs if log.torn is not None]

    def close(self) -> None:
        for log in self._logs:
            log.close()
        self._logs = []
        if self._index is not None:
            self._index.save(self.disk)
            self._index = None
        if self._tasks is not None:
            self._tasks.close()
        if self.locks is not None:
            self.locks.release()
            self.locks = None

    def _segment(self, name: str) -> str:
        return f"{name}.jsonl" if self.writer is None else f"{name}.{self.writer}.jsonl"

    def _open_log(self, name: str, whole: Whole | None = None) -> Log:
        for log in self._logs:
            if log.path.name == name:
                return log
        self._logs.append(Log(self.path / name, self.disk, whole))
        return self._logs[-1]


class RolloutSink:
    """Encodes rollouts and appends them; all rollouts of one call are one write."""

    def __init__(
        self,
        log: Log,
        redactor: Redactor,
        blobs: BlobStore,
        index: SegmentIndex | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._log = log
        self._redactor = redactor
        self._blobs = blobs
        self._index = index
        self._disk = disk or Disk()

    async def commit(self, rollouts: Sequence[Rollout]) -> None:
        await self._blobs.settle()
        lines = b"".join(encode(rollout) + b"\n" for rollout in rollouts)
        written = self._redactor.line(lines)
        await self._log.append(written)
        if self._index is not None:
            heads = rollouts if written is lines else [decode_head(line) for line in written.splitlines()]
            self._index.committed(heads, written, self._disk)


class GradingSink:
    """Encodes gradings and appends them; all gradings of one call are one write."""

    def __init__(self, log: Log, redactor: Redactor) -> None:
        self._log = log
        self._redactor = redactor

    async def commit(self, gradings: Sequence[Grading]) -> None:
        data = b"".join([encode(grading) + b"\n" for grading in gradings])
        await self._log.append(self._redactor.line(data))


def refuse_strangers(path: Path, flag: str = "--out") -> None:
    """A directory that holds something else is not made into a run."""
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise UsageError(f"{flag} {path}: {place} is a file; give a directory")
    if not path.exists() or (path / MANIFEST).exists() or is_unfinished(path):
        return
    others = [p.name for p in path.iterdir() if not _is_ours(p.name)]
    if others and not (path / MANIFEST).exists():  # another rank may have written it just now
        raise UsageError(
            f"{flag} {path} holds other files ({', '.join(sorted(others)[:3])}) and no {MANIFEST}; "
            f"give a new or empty directory"
        )


def read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    try:
        data = file.read_bytes()
        schema = msgspec.json.decode(data, type=_Schema).schema
        manifest = msgspec.json.decode(data, type=Manifest) if schema <= SCHEMA_VERSION else None
    except FileNotFoundError:
        raise UsageError(f"{path} is not a run: it has no {MANIFEST}") from None
    except OSError as problem:
        raise StoreError(f"cannot read {file}: {problem.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise StoreError(
            f"{file} is damaged ({problem}); the rollouts beside it are still readable"
        ) from None
    if manifest is None:
        raise UsageError(
            f"{path} was written by a newer windrow (schema {schema}; this one reads {SCHEMA_VERSION}): "
            f"upgrade windrow"
        )
    return manifest


def move_aside(path: Path, *, lock: bool = True, disk: Disk | None = None) -> Path | None:
    """`--overwrite`: the old run gets another name; nothing is deleted. None if there was no run."""
    held: Lock | None = None
    try:
        if not (path / MANIFEST).exists():
            return None
        held = Lock(path / "lock") if lock else None  # nobody else may be writing it
        number = 1
        while (aside := path.with_name(f"{path.name}.old-{number}")).exists():
            number += 1
        (disk or Disk()).rename(path, aside)
    except OSError as problem:
        raise StoreError(f"cannot move {path} aside: {problem.strerror}") from None
    finally:
        if held is not None:
            held.release()
    return aside


def versions(source: str) -> dict[str, str]:
    """Of what the records depend on beside us; also of the package that a source comes from, where it is another's."""
    found = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "msgspec": msgspec.__version__,
    }
    package = source.partition(":")[0]
    if package in BRIDGES["loader"]:
        from importlib.metadata import PackageNotFoundError, version  # only when needed: it reads files

        try:
            found[package] = version(package)
        except PackageNotFoundError:
            pass  # the name is the user's own, given with --source
    return found


def new_manifest(
    *,
    version: str,
    source: str,
    split: str | None,
    config: dict[str, Json],
    behaviour: Fingerprint,
    grading: Fingerprint | None,
    code: dict[str, str],
    draws: Sequence[Draw] = (),
) -> Manifest:
    return Manifest(
        windrow=version,
        created_at=time.time(),
        source=source,
        split=split,
        config=config,
        behaviour=behaviour,
        grading=grading,
        code=code,
        draws=list(draws),
        versions=versions(source),
    )


def _is_ours(name: str) -> bool:
    """What a crash before the first manifest may have left."""
    return name.startswith(("lock", f".{MANIFEST}.")) or name in (DRAFT, BLOBS)


def whole_sizes(path: Path, names: Iterable[str]) -> dict[str, int]:
    """How long each log of rollouts is, up to its last whole episode."""
    sizes: dict[str, int] = {}
    for name in names:
        with (path / name).open("rb") as file:
            sizes[name] = whole_episodes(file.fileno())
    return sizes
