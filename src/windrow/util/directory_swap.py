"""A directory whose files are replaced together: whoever reads it sees the old files or the new ones, never both.

New files are written beside the old ones, made durable, and renamed to READY, all with one rename. From then on, `standing` is
where readers find them. They get their names in the directory while the ready ones stay where they are, and another rename ends
it. After a kill in between, readers go on reading the ready ones, and the next writer does the rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from windrow.util.disk import Disk, folder_mode

DRAFT = ".merge.draft"
READY = ".merge.ready"
DONE = ".merge.done"
GONE = "gone.json"  # the files to be removed
WHOLE = (
    "whole.json"  # the files that are ready; older versions moved them away one by one, and have no such list
)


class DirectorySwap:
    """New files for the directory `path`, whose lock the caller holds. They are written in `folder`, which has its name."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._draft = path / DRAFT
        self.discard()
        self.folder = self._draft / path.resolve().name
        for folder in (self._draft, self.folder):
            folder.mkdir(folder_mode(path))

    def discard(self) -> None:
        shutil.rmtree(self._draft, ignore_errors=True)

    def commit(self, gone: Iterable[str]) -> None:
        """Replace the old files by the new ones, each of which is durable already. The files `gone` are removed."""
        names = sorted(file.name for file in self.folder.iterdir())
        self._disk.replace(self._draft / GONE, msgspec.json.encode(sorted(gone)))
        self._disk.replace(self._draft / WHOLE, msgspec.json.encode(names))
        self._disk.sync_directory(self.folder)
        self._disk.sync_directory(self._draft)
        self._disk.rename(self._draft, self._path / READY)
        finish_swap(self._path, self._disk)


def standing(path: Path) -> Path:
    """Where the files of a directory are read: the directory itself, or those that an unfinished swap has made ready."""
    ready = path / READY
    if not ready.is_dir():  # nearly always
        return path
    try:
        names = _listed(ready / WHOLE)
        folder = _folder(ready)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return path
    whole = names is not None and folder is not None and all((folder / name).is_file() for name in names)
    return folder if whole and folder is not None else path


def finish_swap(path: Path, disk: Disk) -> None:
    """Put the files in place that a swap has made ready. Safe to repeat after a kill."""
    ready, done = path / READY, path / DONE
    shutil.rmtree(done, ignore_errors=True)
    if ready.is_dir():
        folder = _folder(ready)
        for file in sorted(folder.iterdir()) if folder is not None else ():
            disk.link(file, path / file.name)
        for name in _listed(ready / GONE) or ():
            if Path(name).name == name != "..":  # the directory may come from a stranger
                (path / name).unlink(missing_ok=True)
        disk.sync_directory(path)
        disk.rename(ready, done)
        shutil.rmtree(done, ignore_errors=True)


def _folder(ready: Path) -> Path | None:
    return next((entry for entry in ready.iterdir() if entry.is_dir() and not entry.is_symlink()), None)


def _listed(file: Path) -> list[str] | None:
    return msgspec.json.decode(file.read_bytes(), type=list[str]) if file.exists() else None
