"""Who may write in a run directory: one process alone with its workers, or several ranks, each with its own.

`lock` is the whole run's: a process that collects alone holds it alone, ranks hold it together. `lock.rank-R` is one
rank's, `lock.WRITER` a worker's. `lock.ranks` is held for a moment by the rank that reads or writes what they share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from windrow.store.lock import Lock, is_held, lock_files

RANK = "rank-"  # and its number: the writer of a rank's own segments
WORKERS_GONE_S = 10.0
LOOKED_AT_S = 0.2  # for those who only look whether a lock is held, and hold it for that moment
SHARED_FILES_S = 600.0  # for other ranks that are reading or writing tasks.jsonl, which may be long


class Locks:
    """Held from here on, or refused. `writer` is None for one that has the run alone."""

    def __init__(self, path: Path, writer: str | None, rank: int | None) -> None:
        self._path = path
        self._writer = writer
        self._rank = rank
        self._own: Lock | None = None
        alone = writer is None or rank is not None
        name = "lock" if alone else f"lock.{writer}"
        self._held = Lock(path / name, patience_s=LOOKED_AT_S, shared=rank is not None)
        try:
            if writer is None:
                self._outlast("lock.*")
        except BaseException:
            self._held.release()
            raise

    @contextlib.contextmanager
    def shared_files_locked(self) -> Iterator[None]:
        """Inside, no other rank reads or writes what all share. From the first time on no other process is this rank:
        whoever holds a rank's lock has been in here."""
        if self._rank is None:
            yield
            return
        with self._alone("lock.ranks"):
            if self._own is None:
                what = f"rank {self._rank} of {self._path}"
                self._own = Lock(self._path / f"lock.{self._writer}", patience_s=LOOKED_AT_S, what=what)
                self._outlast("lock.w*", f"lock.{self._writer}.w*")
            yield

    def measuring(self) -> contextlib.AbstractContextManager[None]:
        """Inside, no other rank writes metrics.json: so the last one to do it has seen what all have written."""
        return self._alone("lock.metrics") if self._rank is not None else contextlib.nullcontext()

    def others_at_work(self) -> list[int]:
        """The other ranks that collect here now. Inside `shared_files_locked`; the workers of those that were killed are waited
        for."""
        names = (file.name.removeprefix(f"lock.{RANK}") for file in self._path.glob(f"lock.{RANK}*"))
        others = sorted(int(name) for name in names if name.isdecimal() and int(name) != self._rank)
        at_work = [other for other in others if is_held(self._path / f"lock.{RANK}{other}")]
        if not at_work:
            self._outlast("lock.*.w*")
        return at_work

    def release(self) -> None:
        if self._own is not None:
            self._own.release()
        self._held.release()

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        held = Lock(self._path / name, patience_s=SHARED_FILES_S)
        try:
            yield
        finally:
            held.release()

    def _outlast(self, *names: str) -> None:
        """The workers of a parent that was killed die with it; what they still write is waited for, then read."""
        for name in names:
            for file in lock_files(self._path, name):
                Lock(file, patience_s=WORKERS_GONE_S).release()
