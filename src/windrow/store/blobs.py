"""blobs/ab/cdef…: large bytes of a run, by content hash. Written at once, durable when the rollout that names them is.

A name is given once and says what it holds, so that any number of writers may put the same thing.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from windrow.errors import StoreError
from windrow.util.blobs import NAME_CHARS, Blobs, name_of_blob
from windrow.util.disk import Disk, file_mode, folder_mode, process_name, write_all

FOLDER = "blobs"
REMEMBERED = 4096  # names that were just put and need not be compared with what is on disk again


class BlobStore(Blobs):
    """The blobs of one run directory."""

    def __init__(self, run: Path, disk: Disk | None = None) -> None:
        super().__init__()
        self._folder = run / FOLDER
        self._disk = disk or Disk()
        self._written: OrderedDict[str, None] = OrderedDict()
        self._drafts = 0
        self._unsynced: set[Path] = set()
        self._syncing = asyncio.Lock()
        self._failure: StoreError | None = None

    async def put(self, data: bytes) -> str:
        name = name_of_blob(data)
        if name in self._written:
            self._written.move_to_end(name)
            return name
        if self._failure is not None:
            raise self._failure
        path = path_of(self._folder, name)
        self._drafts += 1
        await asyncio.to_thread(self._write, path, data, self._drafts)
        self._unsynced.add(path)
        self._written[name] = None
        if len(self._written) > REMEMBERED:
            self._written.popitem(last=False)
        return name

    def path(self, name: str) -> str:
        return str(path_of(self._folder, name).absolute())

    async def get(self, name: str) -> bytes:
        return await asyncio.to_thread(read_blob, self._folder, name)

    async def settle(self) -> None:
        """Return when everything that was put is durable; raise what went wrong, since what it was for is lost."""
        if self._failure is None and not self._unsynced and not self._syncing.locked():
            return
        async with self._syncing:  # another's sync may be of what is waited for here
            if self._failure is not None:
                raise self._failure
            waiting = frozenset(self._unsynced)
            if waiting:
                await asyncio.to_thread(self._sync, waiting)
                self._unsynced -= waiting

    def _write(self, path: Path, data: bytes, number: int) -> None:
        try:
            if _holds(path, data):
                return
            for folder in (self._folder, path.parent):
                folder.mkdir(folder_mode(folder.parent), exist_ok=True)
            draft = self._folder / f".{path.name}.{process_name()}.{number}"
            descriptor = os.open(
                draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, file_mode(path.parent)
            )
            try:
                write_all(self._disk, descriptor, data)
            except OSError:
                draft.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)
            os.replace(draft, path)
        except OSError as problem:
            self._failure = StoreError(
                f"cannot write {path}: {problem.strerror}. What was collected before is safe; free some space and "
                f"run the same command again"
            )
            raise self._failure from None

    def _sync(self, paths: Iterable[Path]) -> None:
        try:
            for path in paths:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    self._disk.sync(descriptor)
                finally:
                    os.close(descriptor)
            for folder in {path.parent for path in paths}:
                self._disk.sync_directory(folder)
            self._disk.sync_directory(self._folder)
            self._disk.sync_directory(self._folder.parent)
        except OSError as problem:
            self._failure = StoreError(
                f"the disk did not take what was written to {self._folder} ({problem.strerror}). Check the disk, then "
                f"run the same command again"
            )
            raise self._failure from None


def is_blob_name(name: str) -> bool:
    """Whether `name` has the form of a blob's name."""
    return len(name) == NAME_CHARS and name.isalnum()


def path_of(folder: Path, name: str) -> Path:
    return folder / name[:2] / name[2:]


def read_blob(folder: Path, name: str) -> bytes:
    """The bytes of this name, whole; StoreError where they are missing or damaged."""
    if not is_blob_name(name):
        raise StoreError(f"{name!r} is no name of a blob")
    path = path_of(folder, name)
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise StoreError(f"cannot read the blob {path}: {problem.strerror}") from None
    if name_of_blob(data) != name:
        raise StoreError(f"the blob {path} is damaged: it does not hold what its name says")
    return data


def _holds(path: Path, data: bytes) -> bool:
    """Whether these bytes are there already, all of them: a power cut may have left a name with less."""
    try:
        return path.read_bytes() == data
    except FileNotFoundError:
        return False
