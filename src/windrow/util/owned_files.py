"""Open files that belong to this process alone: one that it forks does not keep them, nor the locks on them.

A lock of the kernel (flock) belongs to the open file, which a forked process shares. It would hold the lock for as long as it
lives, whatever becomes of its parent. So in each process that Python forks, these descriptors lead to /dev/null: what the
child flushes, unlocks or closes there reaches nobody. A fork in C is not seen here; see `util/process_owner.py`.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

_forking = threading.RLock()  # no fork between opening a file and noting it
_owned: dict[int, tuple[int, int]] = {}  # by descriptor: device and inode


def open_owned(path: Path, flags: int, mode: int) -> int:
    """A descriptor of `path`; `close_owned` closes it."""
    with _forking:
        descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
        status = os.fstat(descriptor)
        _owned[descriptor] = status.st_dev, status.st_ino
    return descriptor


def disown(descriptor: int) -> None:
    """Forget a descriptor that is about to be closed."""
    _owned.pop(descriptor, None)


def close_owned(descriptor: int) -> None:
    disown(descriptor)
    os.close(descriptor)


def _leave_to_parent() -> None:
    _forking.release()
    try:
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        nowhere = None
    for descriptor, file in _owned.items():
        try:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != file:
                continue  # closed in some other way, and the number was given out again
            if nowhere is None:
                os.close(descriptor)
            else:
                os.dup2(nowhere, descriptor, inheritable=False)
        except OSError:
            continue
    _owned.clear()
    if nowhere is not None:
        os.close(nowhere)


os.register_at_fork(
    before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_leave_to_parent
)
