"""Files that appear whole or not at all.

A file is written as a draft beside its path and renamed at the end. A kill leaves the draft behind; the next export to
the same path takes it over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from windrow.errors import StoreError, UsageError
from windrow.util.disk import Disk
from windrow.util.owned_files import close_owned, disown, open_owned

BUFFER_BYTES = 1 << 20


def draft_of(out: Path) -> Path:
    return out.with_name(f".{out.name}.part")


@contextlib.contextmanager
def atomic_file(out: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """A file to write. It appears at `out` when the block ends, and is removed if the block raises."""
    with atomic_files([out], overwrite=overwrite) as [file]:
        yield file


@contextlib.contextmanager
def atomic_files(paths: Sequence[Path], *, overwrite: bool) -> Iterator[list[BinaryIO]]:
    """Files that belong together, to write. All appear when the block ends, and none if it raises.

    The first names them all, and appears last. Where older ones are replaced, it is missing until then: after a kill on the
    way nobody takes old and new files for one export.
    """
    for path in paths:
        _check_free(path, overwrite=overwrite)
    files: dict[Path, BinaryIO] = {}
    try:
        with contextlib.ExitStack() as stack:
            try:
                for path in paths:
                    files[path] = stack.enter_context(_locked(draft_of(path), path))
                yield list(files.values())
                for file in files.values():
                    file.flush()
                    os.fsync(file.fileno())
                for path in paths:
                    _check_free(path, overwrite=overwrite)  # another process may have written it meanwhile
                _put_in_place(paths, Disk())
            except BaseException:
                for path in files:
                    draft_of(path).unlink(missing_ok=True)
                raise
    except OSError as problem:
        raise StoreError(f"cannot write {paths[0]}: {problem.strerror or problem}") from None


def _put_in_place(paths: Sequence[Path], disk: Disk) -> None:
    first, *others = paths
    if others and first.exists():
        first.unlink()
        disk.sync_directory(first.parent)
    for path in (*others, first):
        disk.rename(draft_of(path), path)


def _check_free(out: Path, *, overwrite: bool) -> None:
    if out.is_dir():
        raise UsageError(f"{out} is a directory; give the path of a file")
    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists; --overwrite replaces it")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is not a directory, so {out.name} cannot be written in it")


@contextlib.contextmanager
def _locked(draft: Path, out: Path) -> Iterator[BinaryIO]:
    """The draft, emptied and locked by this process."""
    descriptor = open_owned(draft, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process that held it may have renamed it after we opened it: then this is no longer the draft.
        if not draft.exists() or not os.path.samestat(os.fstat(descriptor), draft.stat()):
            raise BlockingIOError
        os.ftruncate(descriptor, 0)
    except BaseException as problem:
        close_owned(descriptor)
        if isinstance(problem, BlockingIOError):
            raise UsageError(f"another export is writing {out}; wait for it, or give another path") from None
        raise
    with os.fdopen(descriptor, "wb", buffering=BUFFER_BYTES) as file:
        try:
            yield file
        finally:
            disown(descriptor)
