"""Free ports for services. No two runs on this machine get the same one.

A port is chosen before its service is started, and a model may load for minutes before it listens. Until then the port is
reserved by a file lock, which ends with the process, and lies outside the range from which the system chooses ports itself.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from windrow.errors import ServiceError
from windrow.util.owned_files import close_owned, open_owned

HOST = "127.0.0.1"
LOWEST = 10_000
EPHEMERAL = 32_768  # the first port of the system's own choice, by default
TRIES = 1_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Port:
    """A port that is reserved for this run until it is released."""

    def __init__(self, number: int, lock_file: Path, descriptor: int) -> None:
        self.number = number
        self._lock_file = lock_file
        self._descriptor: int | None = descriptor
        self._pid = os.getpid()

    def release(self) -> None:
        if self._descriptor is not None:
            if os.getpid() == self._pid:  # a forked process has this object too, but not the port
                self._lock_file.unlink(missing_ok=True)
                # After closing alone, a process that was forked in C would still hold it.
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            close_owned(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.release()


def free_port() -> Port:
    """A port on which nobody listens and which no other run has reserved."""
    highest = _first_ephemeral()
    for _ in range(TRIES):
        number = random.randrange(LOWEST, highest)
        try:
            port = _hold(number)
        except OSError as problem:
            raise ServiceError(f"cannot note which ports are taken: {problem}") from None
        if port is None:
            continue
        if is_free(number):
            return port
        port.release()
    raise ServiceError(
        f"found no free port from {LOWEST} to {highest - 1}; give services a `port` of their own"
    )


def is_free(number: int) -> bool:
    """Whether a service could listen there."""
    with socket.socket() as probe:
        # As servers do: closed connections do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, number))
            probe.listen()
        except OSError:
            return False
    return True


def _hold(number: int) -> Port | None:
    folder = Path(tempfile.gettempdir()) / f"windrow-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    lock_file = folder / str(number)
    descriptor = open_owned(lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), lock_file.stat()):
            return Port(number, lock_file, descriptor)
    except OSError:  # another run has it, or has just let it go
        pass
    close_owned(descriptor)
    return None


def _first_ephemeral() -> int:
    try:
        first = int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return EPHEMERAL
    return first if first > LOWEST + TRIES else EPHEMERAL
