"""The segments of a log: a log is one file, or one file per writer, and each file is a segment."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from windrow.store.line_heads import whole_episodes


def segments(run: Path, name: str = "rollouts") -> list[str]:
    """The names of the files that make up a log: one, or one per writer."""
    files = {*run.glob(f"{name}.jsonl"), *run.glob(f"{name}.*.jsonl")}
    return sorted(file.name for file in files)


def whole_sizes(path: Path, names: Iterable[str]) -> dict[str, int]:
    """How long each log of rollouts is, up to its last whole episode."""
    sizes: dict[str, int] = {}
    for name in names:
        with (path / name).open("rb") as file:
            sizes[name] = whole_episodes(file.fileno())
    return sizes
