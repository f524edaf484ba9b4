"""The directory of a run: the one that `out` names, else runs/<source>[-<split>]-<model>-<8 hex of the fingerprint>."""

from __future__ import annotations

import glob
import os
from pathlib import Path

RUNS = Path("runs")


def run_at(out: str, rank: int) -> Path:
    """The run directory of a rank; `{rank}` in its name is the rank's number."""
    return Path(os.path.normpath(out.replace("{rank}", str(rank))))


def run_name(source: str, split: str | None, model: str) -> str:
    """What a run is called that was given no name, but for its fingerprint."""
    return "-".join(_slug(part) for part in (source, split, model.removeprefix("scripted:")) if part)


def runs_called(name: str) -> list[Path]:
    """The runs that are called so, whatever their fingerprint."""
    return sorted(RUNS.glob(f"{glob.escape(name)}-{'?' * 8}"))


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._" else "-" for c in text).strip("-.") or "run"
