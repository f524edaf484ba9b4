"""Blobs are named after what they hold, so those of two runs are put together by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from windrow.errors import StoreError
from windrow.store.blobs import FOLDER, path_of, read_blob
from windrow.util.blobs import NAME_CHARS
from windrow.util.disk import Disk


def copy_blobs(
    run: Path, out: Path, disk: Disk, *, copied: Callable[[], None], warn: Callable[[str], None]
) -> None:
    """Copy the blobs that `out` lacks, each whole or not at all. What is damaged is told, and left out."""
    for name in _names(run / FOLDER):
        source, target = path_of(run / FOLDER, name), path_of(out / FOLDER, name)
        if target.exists() and target.stat().st_size == source.stat().st_size:
            continue
        try:
            data = read_blob(run / FOLDER, name)
        except StoreError as problem:
            warn(f"left out: {problem}")
            continue
        if not target.parent.is_dir():
            disk.make_directory(target.parent)
        disk.replace(target, data)
        copied()


def _names(folder: Path) -> Iterator[str]:
    for file in sorted(folder.glob("??/*")):
        name = file.parent.name + file.name
        if len(name) == NAME_CHARS and name.isalnum():
            yield name
