"""One writer at a time: a lock file with the names of its owners in it.

The lock is the kernel's (flock), so it ends with the process, however that ends; the file itself stays. It is not left to
processes that its owner has forked: those that Python forks do not keep it (`util/owned_files.py`), and one that was forked in
C is robbed of it once every owner is certainly dead (`util/process_owner.py`): the file is replaced by a new one.

Locks are taken under `lock.guard`, a record lock (POSIX), which no fork inherits. So between looking at a lock and replacing its
file nobody else takes it. Such a lock is dropped when any descriptor of its file is closed: good enough for a moment, not for
a run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from windrow.errors import StoreError, UsageError
from windrow.util.disk import file_mode
from windrow.util.owned_files import close_owned, open_owned
from windrow.util.process_owner import Owner, is_certainly_dead, this_process

GUARD = "lock.guard"
AGAIN_S = 0.02
GUARD_AGAIN_S = 0.002
GUARD_S = 10.0  # whoever has the guard needs it for a moment
MAX_BYTES = 1 << 20  # of the owners' names
BUSY = (errno.EWOULDBLOCK, errno.EACCES)


class Lock:
    """Held from here on, or refused. `patience_s`: for a holder that is about to go.

    `shared`: with others who share it; those who want it alone are refused. `what` it is that may not be written.
    """

    def __init__(
        self, path: Path, *, patience_s: float = 0.0, shared: bool = False, what: str | None = None
    ) -> None:
        self._path = path
        self._shared = shared
        self._pid = os.getpid()
        self._owners: list[Owner] = []  # of a lock that is refused
        deadline = time.monotonic() + patience_s
        try:
            while not self._take():
                if time.monotonic() >= deadline:
                    holder = _spoken(self._owners)
                    raise UsageError(
                        f"{what or path.parent} is being written by {holder}; wait for it, or collect into another --out"
                    )
                time.sleep(AGAIN_S)
        except _NoLocks as problem:
            raise StoreError(
                f"cannot lock {path}: {problem}. If this file system has no locks and nobody else "
                f"writes here, use --no-lock"
            ) from None
        except OSError as problem:
            raise StoreError(f"cannot write in {path.parent}: {problem.strerror}") from None

    def release(self) -> None:
        if os.getpid() == self._pid:  # a process that was forked in C has it too, and may not release it
            if self._shared:
                with contextlib.suppress(OSError):
                    os.pwrite(self._descriptor, b" " * self._name_bytes, self._name_at)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # closing alone leaves it to what an env has forked
        close_owned(self._descriptor)

    def _take(self) -> bool:
        """Take the lock if it is free or all its owners are dead."""
        with _guarded(self._path.parent) as guarded:
            if not guarded:
                return False
            if not self._open_and_lock():
                if not _are_dead(self._owners):
                    return False
                self._path.unlink()  # the next file is new, so nobody can have locked it
                if not self._open_and_lock():
                    return False  # another version of Windrow, which knows no guard, was faster
            self._write_name()
            return True

    def _open_and_lock(self) -> bool:
        self._descriptor = open_owned(self._path, os.O_RDWR | os.O_CREAT, file_mode(self._path.parent))
        held = False
        try:
            held = _flock(self._descriptor, fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX)
            if not held:
                self._owners = _owners(self._descriptor)
        finally:
            if not held:
                close_owned(self._descriptor)
        return held

    def _write_name(self) -> None:
        """Add this process to the owners. If it cannot be named, it is none: a dead owner's name may still stand there."""
        name = msgspec.json.encode(this_process()) + b"\n"
        self._name_at, self._name_bytes = 0, len(name) - 1
        try:
            if self._shared:
                self._name_at = os.fstat(self._descriptor).st_size
            os.ftruncate(self._descriptor, self._name_at)
            if os.pwrite(self._descriptor, name, self._name_at) < len(name):
                os.ftruncate(self._descriptor, self._name_at)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except BaseException:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            close_owned(self._descriptor)
            raise


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock. Who asks may hold it for a moment."""
    try:
        Lock(path).release()
    except UsageError:
        return True
    return False


def holder_of(path: Path) -> str | None:
    """Who holds the lock now, if anybody does and the file says who. The lock is not taken."""
    try:
        descriptor = open_owned(path, os.O_RDONLY, 0)
    except OSError:
        return None
    try:
        if _flock(descriptor, fcntl.LOCK_SH):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            return None
        owners = _owners(descriptor)
        return None if _are_dead(owners) else _spoken(owners)
    except _NoLocks:
        return None
    finally:
        close_owned(descriptor)


def lock_files(folder: Path, pattern: str = "lock*") -> list[Path]:
    """The locks of a run directory. The guard is none: to open and close it would drop it."""
    return sorted(file for file in folder.glob(pattern) if file.name != GUARD)


class _NoLocks(Exception):
    """The file system has no locks, and says why."""


_threads = threading.Lock()  # record locks do not keep the threads of one process apart


def _forget_threads() -> None:
    global _threads
    _threads = threading.Lock()


os.register_at_fork(after_in_child=_forget_threads)


@contextlib.contextmanager
def _guarded(folder: Path) -> Iterator[bool]:
    """Inside, nobody else takes a lock of this directory; False if somebody keeps the guard for too long."""
    with _threads:
        descriptor = os.open(folder / GUARD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, file_mode(folder))
        try:
            deadline = time.monotonic() + GUARD_S
            while not (taken := _record_lock(descriptor)) and time.monotonic() < deadline:
                time.sleep(GUARD_AGAIN_S)
            yield taken
        finally:
            os.close(descriptor)


def _record_lock(descriptor: int) -> bool:
    return _try(fcntl.lockf, descriptor, fcntl.LOCK_EX)


def _flock(descriptor: int, kind: int) -> bool:
    """Whether the lock was free."""
    return _try(fcntl.flock, descriptor, kind)


def _try(lock: Callable[[int, int], object], descriptor: int, kind: int) -> bool:
    try:
        lock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in BUSY:
            return False
        raise _NoLocks(problem.strerror) from None
    return True


def _owners(descriptor: int) -> list[Owner]:
    """The processes that the file names; none if any of its lines cannot be read."""
    try:
        lines = os.pread(descriptor, MAX_BYTES, 0).splitlines()
        return [msgspec.json.decode(line, type=Owner) for line in lines if line.strip()]
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def _are_dead(owners: list[Owner]) -> bool:
    return bool(owners) and all(map(is_certainly_dead, owners))


def _spoken(owners: list[Owner]) -> str:
    living = [owner for owner in owners if not is_certainly_dead(owner)]
    return str(living[-1]) if living else "another process"
