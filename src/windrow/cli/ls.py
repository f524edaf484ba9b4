"""List the runs below a directory."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import msgspec

from windrow.errors import UsageError, WindrowError
from windrow.store.manifest import MANIFEST, Manifest, read_manifest
from windrow.store.rank_progress import unfinished
from windrow.util.directory_swap import DRAFT, READY


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", default="runs", help="where the runs are (runs)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    root = Path(arguments.directory)
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory; runs are written to runs/ unless --out says otherwise")
    run_directories = (manifest.parent for manifest in root.rglob(MANIFEST))
    for path in sorted(path for path in run_directories if path.parent.name not in (DRAFT, READY)):
        try:
            manifest = read_manifest(path)
        except WindrowError as problem:
            print(f"{path}: {problem}")
            continue
        if arguments.json:
            print(msgspec.json.encode({"path": str(path), **msgspec.to_builtins(manifest)}).decode())
        else:
            print(_line(path, manifest))
    return 0


def _line(path: Path, manifest: Manifest) -> str:
    counts = manifest.counts
    policy = manifest.behaviour.of.get("policy") or {}
    created = time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest.created_at))
    done = f"{counts['done']:,}/{counts['planned']:,} done" if counts else "not finished"
    if waiting := unfinished(manifest.ranks):
        done += f" ({'; '.join(waiting)})"
    return f"{path}  {created}  {policy.get('model', '?')}  {done}"
