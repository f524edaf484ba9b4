"""List the runs below a directory."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import msgspec

from windrow.cli.output import write_error, write_json, write_out
from windrow.errors import UsageError, WindrowError
from windrow.store.manifest import MANIFEST, Manifest, read_manifest
from windrow.store.rank_progress import unfinished
from windrow.util.directory_swap import DONE, DRAFT, READY


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", default="runs", help="where the runs are (runs)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    root = Path(arguments.directory)
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory; runs are written to runs/ unless --out says otherwise")
    for path in _run_directories(root):
        try:
            manifest = read_manifest(path)
        except WindrowError as problem:
            (write_error if arguments.json else write_out)(f"{path}: {problem}")
            continue
        if arguments.json:
            write_json({"path": str(path), **msgspec.to_builtins(manifest)})
        else:
            write_out(_line(path, manifest))
    return 0


def _run_directories(root: Path) -> list[Path]:
    """The runs below a directory; one whose first merge was cut short has its files in READY."""
    folders = (manifest.parent for manifest in root.rglob(MANIFEST))
    runs = {folder.parents[1] if folder.parent.name == READY else folder for folder in folders}
    return sorted(run for run in runs if run.parent.name not in (DRAFT, DONE))


def _line(path: Path, manifest: Manifest) -> str:
    counts = manifest.counts
    policy = manifest.behaviour.of.get("policy") or {}
    created = time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest.created_at))
    done = f"{counts.get('done', 0):,}/{counts.get('planned', 0):,} done" if counts else "not finished"
    if waiting := unfinished(manifest.ranks):
        done += f" ({'; '.join(waiting)})"
    return f"{path}  {created}  {policy.get('model', '?')}  {done}"
