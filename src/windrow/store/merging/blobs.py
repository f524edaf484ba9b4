"""Copying blobs. A blob is named by the hash of its content, so blobs of two runs are joined by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from windrow.errors import StoreError
from windrow.store.blobs import FOLDER, is_blob_name, path_of, read_blob
from windrow.util.disk import Disk


def copy_blobs(
    run: Path, out: Path, disk: Disk, *, on_copied: Callable[[], None], warn: Callable[[str], None]
) -> None:
    """Copy the blobs that `out` lacks, each whole or not at all. A damaged blob is left out with a warning."""
    for name in _names(run / FOLDER):
        source, target = path_of(run / FOLDER, name), path_of(out / FOLDER, name)
        if target.exists() and target.stat().st_size == source.stat().st_size:
            continue
        try:
            data = read_blob(run / FOLDER, name)
        except StoreError as problem:
            warn(f"left out: {problem}")
            continue
        disk.make_directory(target.parent)
        disk.replace(target, data)
        on_copied()


def _names(folder: Path) -> Iterator[str]:
    for file in sorted(folder.glob("??/*")):
        name = file.parent.name + file.name
        if is_blob_name(name):
            yield name
