"""Landlock: this process opens only the files below the named paths, and looks into no process outside.

The kernel's interface is described in its `userspace-api/landlock`. Each version (`abi`) adds rights that can be taken
away; those that this kernel does not know are left out. Root is bound by it too.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_VERSION = 1
_PATH_BENEATH = 1
_O_PATH = 0o10000000

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_CHANGES = sum(1 << bit for bit in range(4, 13))  # make and remove files of every kind
_RIGHTS = (
    (1, _EXECUTE | _WRITE_FILE | _READ_FILE | _READ_DIR | _CHANGES),
    (2, _REFER),
    (3, _TRUNCATE),
    (5, 1 << 15),
)
_READ = _READ_FILE | _READ_DIR
_SCRATCH = (
    _READ | _WRITE_FILE | _TRUNCATE | _REFER | (1 << 4) | (1 << 5) | (1 << 7) | (1 << 8)
)  # files, directories
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | (1 << 15)

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """The version that this kernel has; 0 if it has none, or if this process may not use it."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))


def restrict(version: int, readable: Iterable[str], writable: str | None) -> None:
    """Open nothing from now on but what is below `readable`, to read it, and below `writable`. OSError if that fails.

    Newer kernels also refuse TCP (`version` 4 on), and signals and abstract sockets to the outside (6 on).
    """
    handled = sum(rights for since, rights in _RIGHTS if version >= since)
    ruleset = _Ruleset(handled, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    handle = _call(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), 0)
    try:
        for path in readable:
            _allow(handle, path, _READ & handled)
        if writable is not None:
            _allow(handle, writable, _SCRATCH & handled)
        _call(_RESTRICT_SELF, handle, 0)
    finally:
        os.close(handle)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        parent = os.open(path, _O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # nothing is there that could be opened
    try:
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            rights &= _OF_A_FILE
        rule = _PathBeneath(rights, parent)
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
