"""The file layer: the few calls through which the store reaches the disk.

The store keeps its promises through these calls alone, so that a test can replace them and lose all that was not synced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

COPY_BYTES = 1 << 20
PRIVATE_FOLDER = 0o700
SHARED_FOLDER = 0o777  # less the umask, as of any directory
_OTHERS = 0o077


def is_private(folder: Path) -> bool:
    """Whether nobody but its owner can enter the folder, or see what is in it."""
    return folder.stat().st_mode & _OTHERS == 0


def file_mode(folder: Path) -> int:
    """The mode of a new file in `folder`: as private as that, so that a copy or a hard link of it is no less so."""
    return 0o600 if is_private(folder) else 0o644


def opener_in(folder: Path) -> Callable[[str, int], int]:
    """The opener of a built-in `open` for files in `folder`."""
    mode = file_mode(folder)
    return lambda path, flags: os.open(path, flags, mode)


def folder_mode(folder: Path) -> int:
    """The mode of a new folder in `folder`."""
    return PRIVATE_FOLDER if is_private(folder) else SHARED_FOLDER


def make_private(folder: Path) -> None:
    """Take the folder's rights from everybody but its owner; one that belongs to somebody else stays as it is."""
    with contextlib.suppress(PermissionError):
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) & ~_OTHERS)


class Disk:
    """The real disk. Tests replace it by one that fails, fills up or loses power."""

    def open(self, path: Path) -> int:
        """A descriptor for reading and appending. A missing file is made; its name is durable."""
        descriptor = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, file_mode(path.parent)
        )
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
        descriptor = os.open(
            draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, file_mode(path.parent)
        )
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
            descriptor = os.open(
                draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, file_mode(path.parent)
            )
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

    def link(self, old: Path, new: Path) -> None:
        """Let `new` name the file `old`, too. It names its old file or this one at any time; the caller syncs the directory."""
        if new.exists() and os.path.samefile(old, new):
            return  # the rename below would leave the draft behind
        draft = _draft(new)
        draft.unlink(missing_ok=True)
        try:
            os.link(old, draft)
        except OSError:  # a file system without hard links
            self.replace(new, _pieces(old))
        else:
            os.replace(draft, new)

    def make_directory(self, path: Path, *, mode: int | None = None) -> None:
        """Make `path` and its missing parents, each durable in the one above it.

        `mode` is that of `path` alone; without it, each is as private as the one above it.
        """
        existed = path.is_dir()
        if not path.parent.is_dir():
            self.make_directory(path.parent, mode=None if mode is None else SHARED_FOLDER)
        path.mkdir(folder_mode(path.parent) if mode is None else mode, exist_ok=True)
        try:
            # Also for an existing one: its maker may have been killed before this call.
            self.sync_directory(path.parent)
        except PermissionError:
            if not existed:
                raise


def process_name() -> str:
    """A name for this process among all that may write in a directory. Containers that share one may share process ids."""
    return f"{os.getpid()}-{_host()}"


def remove_abandoned_drafts(folder: Path) -> None:
    """Remove the drafts in `folder` of processes of this host that have ended. Those of other hosts may still be written."""
    drafts = re.compile(rf"\..+\.(\d+)-{re.escape(_host())}(\.\d+)?")
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        draft = drafts.fullmatch(name)
        if draft is not None and not _is_alive(int(draft[1])):
            with contextlib.suppress(OSError):
                os.unlink(folder / name)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _host() -> str:
    return socket.gethostname()[:64]


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{process_name()}")


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(COPY_BYTES):
            yield piece


def write_all(disk: Disk, descriptor: int, data: bytes) -> None:
    """Write every byte, or raise OSError."""
    view = memoryview(data)
    while view:
        written = disk.write(descriptor, view)
        if not written:
            raise OSError(errno.EIO, "nothing was written")
        view = view[written:]
