"""Who owns a file: a process, written down so that others can tell when it is certainly dead.

A process number alone says little: it is given out again, and means another process in another container or on another
machine. So the record has the time at which the process began, and names the place where both numbers mean something. Where
they cannot be compared, nobody is taken for dead.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from pathlib import Path
from typing import Annotated

import msgspec

_PROC = Path("/proc")


class Owner(msgspec.Struct, omit_defaults=True):
    """A process. Records of earlier versions have only its host, number and `start`, the time of the record."""

    host: str
    pid: Annotated[int, msgspec.Meta(gt=0, lt=1 << 31)]
    start: float
    place: str | None = None  # the host since it was booted, and its namespaces of processes and times
    ticks: int | None = None  # when the process began, as the kernel counts

    def __str__(self) -> str:
        try:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.start))
        except (OSError, OverflowError, ValueError):
            since = "an unknown time"
        return f"process {self.pid} on {self.host} (since {since})"


def this_process() -> Owner:
    begun = _begun(os.getpid())
    return Owner(
        host=socket.gethostname(),
        pid=os.getpid(),
        start=time.time(),
        place=_place(),
        ticks=begun[1] if begun is not None else None,
    )


def is_certainly_dead(owner: Owner) -> bool:
    """Whether the process has ended. False where that cannot be known from here."""
    if owner.place is None or owner.ticks is None or owner.place != _place():
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's, whose state /proc may hide
    begun = _begun(owner.pid)
    if begun is None:
        return False
    state, ticks = begun
    return ticks != owner.ticks or (state in "ZX" and _is_without_threads(owner.pid))


def _place() -> str | None:
    """A short name of what process numbers and start times go by; None where that is not known."""
    try:
        if os.readlink(_PROC / "self") != str(os.getpid()):
            return None  # /proc shows other numbers than ours
        parts = [
            socket.gethostname(),
            (_PROC / "sys/kernel/random/boot_id").read_text().strip(),
            os.readlink(_PROC / "self/ns/pid"),
            _time_namespace(),
        ]
    except OSError:
        return None
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _time_namespace() -> str:
    try:
        return os.readlink(_PROC / "self/ns/time")
    except FileNotFoundError:  # a kernel without them
        return ""


def _begun(pid: int) -> tuple[str, int] | None:
    """The state of a process and when it began."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _is_without_threads(pid: int) -> bool:
    """A process whose first thread has ended looks dead, though others of its threads may run."""
    try:
        return len(os.listdir(_PROC / str(pid) / "task")) <= 1
    except OSError:
        return False
