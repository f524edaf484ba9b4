"""One writer at a time: a lock file with the name of its holder in it.

The lock is the kernel's (flock), so it ends with the process, however that ends; the file itself stays.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from pathlib import Path

import msgspec

from windrow.errors import StoreError, UsageError

AGAIN_S = 0.02


class Holder(msgspec.Struct):
    host: str
    pid: int
    start: float


class Lock:
    """Held from here on, or refused. `patience_s`: for a holder that is about to go.

    `shared`: with others who share it; those who want it alone are refused. `what` it is that may not be written.
    """

    def __init__(
        self, path: Path, *, patience_s: float = 0.0, shared: bool = False, what: str | None = None
    ) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as problem:
            raise StoreError(f"cannot write in {path.parent}: {problem.strerror}") from None
        try:
            _flock(self._descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, patience_s)
        except OSError as problem:
            holder = _holder(self._descriptor)
            os.close(self._descriptor)
            if problem.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise UsageError(
                    f"{what or path.parent} is being written by {holder}; wait for it, or collect into another --out"
                ) from None
            raise StoreError(
                f"cannot lock {path}: {problem.strerror}. If this file system has no locks and nobody else "
                f"writes here, use --no-lock"
            ) from None
        name = msgspec.json.encode(Holder(socket.gethostname(), os.getpid(), time.time()))
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, name + b"\n", 0)

    def release(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # closing alone leaves it to what an env has forked
        os.close(self._descriptor)


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
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(descriptor)
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(descriptor)
    return None


def _flock(descriptor: int, kind: int, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(AGAIN_S)


def _holder(descriptor: int) -> str:
    try:
        holder = msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Holder)
    except (OSError, msgspec.DecodeError):
        return "another process"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.start))
    return f"process {holder.pid} on {holder.host} (since {since})"
