"""Files that appear whole or not at all.

A file is written as a draft beside its path and renamed at the end. A kill leaves the draft behind; the next export to
the same path takes it over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from windrow.errors import StoreError, UsageError
from windrow.util.disk import Disk

BUFFER_BYTES = 1 << 20


def draft_of(out: Path) -> Path:
    return out.with_name(f".{out.name}.part")


@contextlib.contextmanager
def atomic_file(out: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """A file to write. It appears at `out` when the block ends, and is removed if the block raises."""
    _check_free(out, overwrite=overwrite)
    draft = draft_of(out)
    try:
        with _locked(draft, out) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                _check_free(out, overwrite=overwrite)  # another process may have written it meanwhile
                Disk().rename(draft, out)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
    except OSError as problem:
        raise StoreError(f"cannot write {out}: {problem.strerror or problem}") from None


def _check_free(out: Path, *, overwrite: bool) -> None:
    if out.is_dir():
        raise UsageError(f"{out} is a directory; give the path of a file")
    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists; --overwrite replaces it")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is not a directory, so {out.name} cannot be written in it")


def _locked(draft: Path, out: Path) -> BinaryIO:
    """The draft, emptied and locked by this process."""
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process that held it may have renamed it after we opened it: then this is no longer the draft.
        if not draft.exists() or not os.path.samestat(os.fstat(descriptor), draft.stat()):
            raise BlockingIOError
        os.ftruncate(descriptor, 0)
        return os.fdopen(descriptor, "wb", buffering=BUFFER_BYTES)
    except BaseException as problem:
        os.close(descriptor)
        if isinstance(problem, BlockingIOError):
            raise UsageError(f"another export is writing {out}; wait for it, or give another path") from None
        raise
