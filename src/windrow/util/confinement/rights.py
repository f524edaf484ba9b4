"""Giving up rights: by a list of system calls, by a list of paths, and by limits on what the process may use."""

from __future__ import annotations

import os
import resource
import sys
import sysconfig
from functools import cache
from typing import Any, NamedTuple

from windrow.util.confinement import landlock, seccomp

FILE_BYTES = 16 * 2**20  # of each file in a scratch directory
OPEN_FILES = 64
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/null",
    "/dev/zero",
    "/dev/urandom",
)


class Confinement(NamedTuple):
    """What a confined process may use: memory, and whether it has a directory of its own to write in."""

    memory_bytes: int = 2**30
    scratch: bool = False


class Holding(NamedTuple):
    """What this system enforces on a confined process."""

    landlock: int  # its version; 0: paths cannot be restricted
    seccomp: bool

    def __str__(self) -> str:
        paths = f"Landlock {self.landlock}" if self.landlock else "no Landlock (files can be read)"
        calls = "seccomp" if self.seccomp else "no seccomp (only limits of time and memory hold)"
        return f"{calls}, {paths}"


@cache
def holding() -> Holding:
    """What this system offers. It is asked once, before anything is given up."""
    return Holding(landlock.abi() if sys.platform == "linux" else 0, seccomp.available())


def confine(confinement: Confinement, cpu_s: int, scratch: str | None) -> None:
    """Give up, for good, all rights but to compute, to read Python's own files and to write in `scratch`.

    OSError where the system offers a restriction and refuses to apply it. The order matters: limits cannot be set, nor
    paths restricted, once system calls are.
    """
    offered = holding()
    _set_limits(confinement.memory_bytes, cpu_s)
    if offered.landlock:
        seccomp.no_new_privileges()
        landlock.restrict(offered.landlock, readable_paths(), scratch)
    if offered.seccomp:
        seccomp.restrict(may_write=scratch is not None and offered.landlock > 0)
    else:
        sys.addaudithook(fence)


def make_ready(confinement: Confinement) -> None:
    """Work out, once, what every confined process that is forked from this one needs."""
    readable_paths()
    if holding().seccomp:
        seccomp.filter_of(confinement.scratch and holding().landlock > 0)


@cache
def readable_paths() -> tuple[str, ...]:
    """What a confined process may read: the import path, Python's own directories and the system's libraries."""
    own = (sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), *sys.path)
    paths = {os.path.realpath(path) for path in (*own, *_SYSTEM) if path and os.path.exists(path)}
    return tuple(sorted(path for path in paths if not any(path.startswith(f"{other}/") for other in paths)))


def _set_limits(memory_bytes: int, cpu_s: int) -> None:
    """Set hard limits too: a soft one could be raised again. A second after SIGXCPU, which can be caught, it is killed."""
    _limit(resource.RLIMIT_CORE, 0, 0)
    _limit(resource.RLIMIT_CPU, cpu_s, cpu_s + 1)
    _limit(resource.RLIMIT_AS, memory_bytes, memory_bytes)
    _limit(resource.RLIMIT_FSIZE, FILE_BYTES, FILE_BYTES)
    _limit(resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES)


def _limit(kind: int, soft: int, hard: int) -> None:
    _, highest = resource.getrlimit(kind)
    if highest != resource.RLIM_INFINITY:
        soft, hard = min(soft, highest), min(hard, highest)
    try:
        resource.setrlimit(kind, (soft, hard))
    except (OSError, ValueError):
        if sys.platform == "linux":  # other systems do not know every limit
            raise


_REFUSED = (
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "os.kill",
    "subprocess.",
    "pty.",
    "socket.",
)
_CHANGES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
)


def fence(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse, as an audit hook, what a verdict has no reason for. It stops accidents, not attacks: for systems without seccomp."""
    writes = event == "open" and (
        any(letter in str(arguments[1] or "") for letter in "wax+")
        or (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    )
    if writes or event.startswith((*_REFUSED, *_CHANGES, "ctypes.", "shutil.")):
        raise PermissionError(f"a confined process may not do this: {event}")
