"""A secret key of this user, by which their own files are told from those of others.

It is made when it is first needed, in $WINDROW_STATE, else $XDG_STATE_HOME/windrow, else ~/.local/state/windrow. Only its
owner can read it; one that others can read is not used.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from pathlib import Path

KEY = "key"
KEY_BYTES = 32


class NoKey(Exception):
    """There is no key, and the message says why."""


def state_home() -> Path:
    """The directory for what belongs to the user and cannot be computed again."""
    directory = os.environ.get("WINDROW_STATE")
    if directory:
        return Path(directory)
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "windrow"
    except RuntimeError as problem:  # the user has no home
        raise NoKey(str(problem)) from None


def find_key() -> bytes:
    """Return the user's key. Raises NoKey where there is none."""
    path = state_home() / KEY
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            key = os.read(descriptor, KEY_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as problem:
        raise NoKey(f"cannot read {path}: {problem.strerror}") from None
    if not stat.S_ISREG(status.st_mode) or len(key) != KEY_BYTES:
        raise NoKey(f"{path} is not a key; delete it to have a new one made")
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise NoKey(
            f"{path} can be read by others; type: chmod 600 {path}, or delete it to have a new one made"
        )
    return key


def make_key() -> bytes:
    """Return the user's key, made now if there is none. Raises NoKey where it cannot be kept.

    The key appears whole and once: of processes that make it at the same time, all get the same.
    """
    home = state_home()
    with contextlib.suppress(NoKey):
        return find_key()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(dir=home, prefix=".key.")  # 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(draft, home / KEY)
        finally:
            os.unlink(draft)
    except OSError as problem:
        raise NoKey(f"cannot write in {home}: {problem.strerror}") from None
    return find_key()
