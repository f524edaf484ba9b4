"""The run directory as its writer sees it: the lock, the manifest, the tasks, the logs.

Everything in it is written under a lock, and everything that is replaced is replaced whole.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from windrow.errors import StoreError, UsageError
from windrow.store.blobs import FOLDER as BLOBS
from windrow.store.blobs import BlobStore
from windrow.store.index_files import FOLDER as INDEXES
from windrow.store.line_heads import whole_episodes
from windrow.store.lock import Lock
from windrow.store.locks import RANK, Locks
from windrow.store.log import TORN, Log, Whole
from windrow.store.manifest import MANIFEST, Manifest, is_run, read_manifest, write_manifest
from windrow.store.resume_index import SegmentIndex, load_index
from windrow.store.signing import NO_TASKS, is_own, signed, signed_tasks, unsigned
from windrow.store.sinks import RolloutSink
from windrow.store.task_file import TASKS, TaskFile
from windrow.tasks.plan import TaskList
from windrow.util.directory_swap import DRAFT, finish_swap
from windrow.util.disk import PRIVATE_FOLDER, SHARED_FOLDER, Disk, make_private, remove_abandoned_drafts
from windrow.util.redaction import Redactor


class RunDirectory:
    """An open run directory, locked by this process. `writer` names this writer's own segments of the logs.

    A rank shares it with others: what is not its own it reads and writes inside `shared_files_locked`. A new run is private
    (0700, and 0600 its files) unless it is `shared` with other users, by the umask; an old one keeps its modes.
    """

    def __init__(
        self,
        path: Path,
        *,
        writer: str | None = None,
        rank: int | None = None,
        lock: bool = True,
        shared: bool = False,
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
                if path.is_dir():  # the process that made it may have been killed before it was durable
                    with contextlib.suppress(PermissionError):
                        self.disk.sync_directory(path.parent)
                self.disk.make_directory(path, mode=SHARED_FOLDER if shared else PRIVATE_FOLDER)
                if not shared:
                    make_private(path)  # it may have been there, empty
            self.locks = Locks(path, self.writer, rank) if lock else None
            if self.writer is None:
                finish_swap(path, self.disk)
                if lock:
                    _remove_leftovers(path)
            self._read_manifest()
        except BaseException as problem:
            self.close()
            if isinstance(problem, OSError):
                raise StoreError(f"cannot write in {path}: {problem.strerror}") from None
            raise

    @contextlib.contextmanager
    def shared_files_locked(self) -> Iterator[None]:
        """Inside, no other rank reads or writes what all share: run.json, which is read anew, and tasks.jsonl."""
        with self.locks.shared_files_locked() if self.locks is not None else contextlib.nullcontext():
            if self.rank is not None:
                finish_swap(self.path, self.disk)
            if self.rank is not None and (self.path / MANIFEST).exists():
                self._read_manifest()
            yield

    def _read_manifest(self) -> None:
        """Read run.json, if there is one, and find out whether this user has written it."""
        self.manifest = read_manifest(self.path) if (self.path / MANIFEST).exists() else None
        self.is_own = self.manifest is None or is_own(self.path, self.manifest)
        self._signed_tasks = NO_TASKS if self.manifest is None else signed_tasks(self.manifest)

    def write_manifest(self, manifest: Manifest) -> None:
        """Write run.json, signed if the run is this user's: a foreign run stays foreign."""
        manifest = signed(manifest, self._signed_tasks) if self.is_own else unsigned(manifest)
        try:
            write_manifest(self.path, manifest, self.disk)
        except OSError as problem:
            raise StoreError(f"cannot write {self.path / MANIFEST}: {problem.strerror}") from None
        self.manifest = manifest

    def open_tasks(self) -> TaskFile:
        self._tasks = TaskFile(self._open_log(TASKS), self.path / TASKS, self.disk)
        return self._tasks

    def adopt_tasks(self, tasks: TaskList) -> TaskFile:
        """Open tasks.jsonl for these tasks, and sign what is added to it, unless somebody else has changed the file."""
        file = self.open_tasks()
        unchanged = self.is_own and file.content() == self._signed_tasks
        file.adopt(tasks)
        now = file.content() if unchanged else None
        if self.is_own and self.manifest is not None and now != self._signed_tasks:
            self._signed_tasks = now
            self.write_manifest(self.manifest)
        return file

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


def refuse_strangers(path: Path, flag: str = "--out") -> None:
    """A directory that holds something else is not made into a run."""
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise UsageError(f"{flag} {path}: {place} is a file; give a directory")
    if not path.exists() or is_run(path):
        return
    others = [p.name for p in path.iterdir() if not _is_ours(p.name)]
    if others and not (path / MANIFEST).exists():  # another rank may have written it just now
        raise UsageError(
            f"{flag} {path} holds other files ({', '.join(sorted(others)[:3])}) and no {MANIFEST}; "
            f"give a new or empty directory"
        )


def move_aside(path: Path, *, lock: bool = True, disk: Disk | None = None) -> Path | None:
    """`--overwrite`: the old run gets another name; nothing is deleted. None if there was no run."""
    held: Lock | None = None
    try:
        if not is_run(path):
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


def _remove_leftovers(path: Path) -> None:
    """Remove what killed writers had begun to write. The caller holds the run alone."""
    folders = [path, path / INDEXES, path / BLOBS, path / TORN]
    if (path / DRAFT).is_dir():  # a killed merge may have left drafts of blobs, too
        shutil.rmtree(path / DRAFT, ignore_errors=True)
        folders += (path / BLOBS).glob("??")
    for folder in folders:
        remove_abandoned_drafts(folder)


def _is_ours(name: str) -> bool:
    """What a crash before the first manifest may have left."""
    return name.startswith(("lock", f".{MANIFEST}.")) or name in (DRAFT, BLOBS)
