"""A directory whose files are replaced together: new files are written beside the old ones, made durable, then moved in.

After a kill before they are ready, the old files stand. After a kill later on, the next writer moves in the rest before
it reads.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from windrow.util.disk import Disk

DRAFT = ".merge.draft"
READY = ".merge.ready"
GONE = "gone.json"


class DirectorySwap:
    """New files for the directory `path`, whose lock the caller holds. They are written in `folder`, which has its name."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._draft = path / DRAFT
        self.discard()
        self.folder = self._draft / path.resolve().name
        self.folder.mkdir(parents=True)

    def discard(self) -> None:
        shutil.rmtree(self._draft, ignore_errors=True)

    def commit(self, gone: Iterable[str]) -> None:
        """Replace the old files by the new ones, each of which is durable already. The files `gone` are removed."""
        self._disk.replace(self._draft / GONE, msgspec.json.encode(sorted(gone)))
        self._disk.sync_directory(self.folder)
        self._disk.sync_directory(self._draft)
        self._disk.rename(self._draft, self._path / READY)
        finish_swap(self._path, self._disk)


def is_unfinished(path: Path) -> bool:
    """Whether a swap was cut short after its files were ready."""
    return (path / READY).is_dir()


def finish_swap(path: Path, disk: Disk) -> None:
    """Move in the files that a swap has made ready. Safe to repeat after a kill."""
    ready = path / READY
    if not ready.is_dir():
        return
    for folder in ready.iterdir():
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            disk.rename(file, path / file.name)
    gone_list = ready / GONE
    if gone_list.exists():
        for name in msgspec.json.decode(gone_list.read_bytes(), type=list[str]):
            (path / name).unlink(missing_ok=True)
    disk.sync_directory(path)  # before the list is lost
    shutil.rmtree(ready)
    disk.sync_directory(path)
