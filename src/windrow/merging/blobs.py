"""Blobs are named after what they hold, so those of two runs are put together by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from windrow.store.disk import Disk

BLOBS = "blobs"
_PIECE_BYTES = 1 << 20


def copy_blobs(run: Path, out: Path, disk: Disk) -> int:
    """Copy the blobs that `out` lacks, each whole or not at all; how many they were."""
    copied = 0
    for file in sorted((run / BLOBS).rglob("*")):
        target = out / file.relative_to(run)
        if file.name.startswith(".") or not file.is_file() or target.exists():
            continue
        _make_folder(target.parent, disk)
        disk.replace(target, _pieces(file))
        copied += 1
    return copied


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while piece := opened.read(_PIECE_BYTES):
            yield piece


def _make_folder(path: Path, disk: Disk) -> None:
    """With its parents, each durable in the one above it."""
    if not path.is_dir():
        _make_folder(path.parent, disk)
        path.mkdir()
        disk.sync_directory(path.parent)
