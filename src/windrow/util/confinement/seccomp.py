"""seccomp: this process makes only the system calls of a list; all others fail with EPERM, for it and for good.

The filter is a program of classic BPF, as the kernel's `userspace-api/seccomp_filter` describes it. It looks at numbers and
plain arguments only, never at memory, which the process could change behind it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from functools import cache

from windrow.util.confinement.system_calls import AUDIT_ARCHITECTURE, COMPUTE, WRITE, number_of

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCHITECTURE = (
    0,
    4,
)  # offsets in the kernel's struct seccomp_data, whose arguments follow from 16 on

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FCNTL_COMMANDS = (
    0,
    1,
    2,
    3,
    4,
    1030,
)  # duplicate, flags; not F_SETOWN, which has the kernel send signals to others
_IOCTL_REQUESTS = (
    0x5401,
    0x541B,
    0x5421,
    0x5450,
    0x5451,
)  # is it a terminal, bytes waiting, blocking, close on exec

_libc = ctypes.CDLL(None, use_errno=True)


def available() -> bool:
    """Whether this kernel has filters, and this module the numbers of its system calls."""
    known = sys.platform == "linux" and platform.machine() in AUDIT_ARCHITECTURE and sys.maxsize > 2**32
    # There is no filter at address 0: EFAULT says that the kernel would have read one.
    return known and _prctl(_PR_SET_SECCOMP, _MODE_FILTER, 0) == errno.EFAULT


def restrict(*, may_write: bool) -> None:
    """Make only the calls of the list from now on. OSError if the kernel refuses the filter.

    `may_write` is for a process whose paths are restricted already.
    """
    program = filter_of(may_write) + b"".join([*_own_signals(), _step(_RETURN, _REFUSE)])
    code = ctypes.create_string_buffer(program, len(program))
    loaded = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    no_new_privileges()
    if problem := _prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(loaded)):
        raise OSError(problem, f"seccomp: {os.strerror(problem)}")


def no_new_privileges() -> None:
    """Gain no rights from a program's file: the kernel asks for this before it restricts a process."""
    if problem := _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0):
        raise OSError(problem, f"no_new_privs: {os.strerror(problem)}")


@cache
def filter_of(may_write: bool) -> bytes:
    """The part of the filter that is the same in every process: compare the number with each that is allowed."""
    architecture = AUDIT_ARCHITECTURE[platform.machine()]
    program = [_step(_LOAD, _ARCHITECTURE), _step(_EQUAL, architecture, 1, 0), _step(_RETURN, _REFUSE)]
    program.append(_step(_LOAD, _NUMBER))
    for name in [*COMPUTE, *(WRITE if may_write else ())]:
        program += _when(name, [_step(_RETURN, _ALLOW)])
    opening = [_step(_RETURN, _ALLOW)] if may_write else None
    program += _when("open", opening or _unless_bits(1, _WRITING))
    program += _when("openat", opening or _unless_bits(2, _WRITING))
    program += _when("fcntl", _if_one_of(1, _FCNTL_COMMANDS))
    program += _when("ioctl", _if_one_of(1, _IOCTL_REQUESTS))
    program += _when("socketpair", _if_one_of(0, (socket.AF_UNIX,)))  # asyncio wakes itself up with one
    program += _when("prlimit64", _if_null(2))  # read limits, set none
    return b"".join(program)


def _own_signals() -> list[bytes]:
    """Allow signals to this very process: abort() and raise() send one."""
    return _when("tgkill", _if_one_of(0, (os.getpid(),)))


def _when(name: str, steps: list[bytes]) -> list[bytes]:
    """Take the steps for this system call, and skip them for others."""
    number = number_of(name)
    return [] if number is None else [_step(_EQUAL, number, 0, len(steps)), *steps]


def _if_one_of(argument: int, values: tuple[int, ...]) -> list[bytes]:
    tests = [_step(_EQUAL, value, len(values) - place, 0) for place, value in enumerate(values)]
    return [_step(_LOAD, 16 + 8 * argument), *tests, _step(_RETURN, _REFUSE), _step(_RETURN, _ALLOW)]


def _unless_bits(argument: int, bits: int) -> list[bytes]:
    load = _step(_LOAD, 16 + 8 * argument)
    return [load, _step(_ANY_BIT, bits, 0, 1), _step(_RETURN, _REFUSE), _step(_RETURN, _ALLOW)]


def _if_null(argument: int) -> list[bytes]:
    """Allow it where both halves of the argument are 0."""
    low, high = _step(_LOAD, 16 + 8 * argument), _step(_LOAD, 20 + 8 * argument)
    refuse, allow = _step(_RETURN, _REFUSE), _step(_RETURN, _ALLOW)
    return [low, _step(_EQUAL, 0, 1, 0), refuse, high, _step(_EQUAL, 0, 1, 0), refuse, allow]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _prctl(option: int, *arguments: int) -> int:
    """0, or the error's number."""
    longs = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0)][:4]
    ctypes.set_errno(0)
    return ctypes.get_errno() if _libc.prctl(option, *longs) < 0 else 0
