"""The file layer: the few calls through which the store reaches the disk.

The store keeps its promises through these calls alone, so that a test can replace them and lose all that was not synced.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from pathlib import Path


class Disk:
    """The real disk. Tests replace it by one that fails, fills up or loses power."""

    def open(self, path: Path) -> int:
        """A descriptor for reading and appending. A missing file is made; its name is durable."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            # Also for an existing file: its maker may have been killed before this call.
            self.sync_directory(path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    def replace(self, path: Path, data: bytes | Iterable[bytes]) -> None:
        """Put `data`, which may come in pieces, at `path`, whole or not at all."""
        draft = _draft(path)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            for piece in (data,) if isinstance(data, bytes) else data:
                write_all(self, descriptor, piece)
            self.sync(descriptor)
        finally:
            os.close(descriptor)
        self.rename(draft, path)

    def put(self, path: Path, pieces: Iterable[bytes]) -> None:
        """As `replace`, for a file that can be made again: readers see the old or the new file, but a power cut may tear it."""
        draft = _draft(path)
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                for piece in pieces:
                    write_all(self, descriptor, piece)
            finally:
                os.close(descriptor)
            os.replace(draft, path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)
        self.sync_directory(new.parent)

    def make_directory(self, path: Path) -> None:
        """Make `path` and its missing parents, each durable in the one above it."""
        existed = path.is_dir()
        if not path.parent.is_dir():
            self.make_directory(path.parent)
        path.mkdir(exist_ok=True)
        try:
            # Also for an existing one: its maker may have been killed before this call.
            self.sync_directory(path.parent)
        except PermissionError:
            if not existed:
                raise


def process_name() -> str:
    """A name for this process among all that may write in a directory. Containers that share one may share process ids."""
    return f"{os.getpid()}-{socket.gethostname()[:64]}"


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{process_name()}")


def write_all(disk: Disk, descriptor: int, data: bytes) -> None:
    """Write every byte, or raise OSError."""
    view = memoryview(data)
    while view:
        written = disk.write(descriptor, view)
        if not written:
            raise OSError(errno.EIO, "nothing was written")
        view = view[written:]
