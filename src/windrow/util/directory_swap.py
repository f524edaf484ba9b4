"""A run directory replaced whole: the new files are written beside the old ones, made durable, then moved in.

Killed before they are ready, nothing has happened. Killed after, the next writer moves the rest in before it reads.
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


class Swap:
    """New files for the run at `path`, whose lock the caller holds. They are written in `folder`, a run of the same name."""

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
        """Put the new files, which are durable each, in the place of the old ones; `gone` are left without a successor."""
        self._disk.replace(self._draft / GONE, msgspec.json.encode(sorted(gone)))
        self._disk.sync_directory(self.folder)
        self._disk.sync_directory(self._draft)
        self._disk.rename(self._draft, self._path / READY)
        finish(self._path, self._disk)


def is_unfinished(path: Path) -> bool:
    """Whether a swap was cut short after its files were ready."""
    return (path / READY).is_dir()


def finish(path: Path, disk: Disk) -> None:
    """Move in what a swap has made ready; again, if it was cut short on the way."""
    ready = path / READY
    if not ready.is_dir():
        return
    for folder in ready.iterdir():
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            disk.rename(file, path / file.name)
    listed = ready / GONE
    if listed.exists():
        for name in msgspec.json.decode(listed.read_bytes(), type=list[str]):
            (path / name).unlink(missing_ok=True)
    disk.sync_directory(path)  # before the list is lost
    shutil.rmtree(ready)
    disk.sync_directory(path)
