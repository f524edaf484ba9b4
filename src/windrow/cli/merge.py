"""Make one run of several: of ranks that had a directory each, or of parts that were collected apart.

windrow merge runs/mine.0 runs/mine.1 runs/mine.2 -o runs/mine     # in any order, and again when there is more
"""

from __future__ import annotations

import argparse
import time

from windrow.cli.output import write_error, write_out
from windrow.cli.progress_text import percent
from windrow.collecting.merge import MergeProgress, MergeResult, merge

PROGRESS_S = 2.0
NAMES = {"rollouts": "attempts", "scores": "verdicts", "judgements": "judges' replies", "tasks": "tasks"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory; nothing in it is changed")
    parser.add_argument(
        "-o",
        "--out",
        required=True,
        metavar="OUT",
        help="the merged run; if it is there, what it holds is merged too",
    )
    parser.add_argument("--no-lock", dest="lock", action="store_false", help="do not lock OUT")
    parser.add_argument(
        "--quiet", action="store_true", help="no progress; errors and warnings are still shown"
    )


def run(arguments: argparse.Namespace) -> int:
    merged = merge(
        arguments.runs,
        arguments.out,
        lock=arguments.lock,
        on_progress=None if arguments.quiet else _Progress(),
        on_warning=lambda text: write_error(f"warning: {text}"),
    )
    write_out(merged_text(arguments.out, merged))
    return 0 if merged.complete else 1


def merged_text(out: str, merged: MergeResult) -> str:
    """What is in a merged run, and what is not."""
    lines = [
        f"{out}: {merged.attempts:,} attempts at {merged.tasks:,} tasks, {merged.gradings:,} verdicts, from {merged.runs:,} runs",
        f"{merged.done:,} of {merged.planned:,} done, {merged.ungraded:,} ungraded",
    ]
    if merged.conflicts:
        counts = ", ".join(f"{count:,} {NAMES[log]}" for log, count in merged.conflicts.items())
        lines.append(
            f"conflicts: {counts} differ from what is kept in their place; they stand in conflicts.jsonl"
        )
    lines += [f"missing: rank {rank} of {size}" for rank, size in merged.missing]
    if merged.missing:
        lines.append(
            "merge again with their directories, or collect what is missing: windrow collect … --out " + out
        )
    return "\n".join(lines)


class _Progress:
    """A line on standard error every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PROGRESS_S

    def __call__(self, progress: MergeProgress) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PROGRESS_S
        if progress.phase in ("counting", "copying"):
            write_error(
                "counting …" if progress.phase == "counting" else f"copying: {progress.blobs:,} blobs"
            )
            return
        done = progress.read_bytes if progress.phase == "reading" else progress.written_bytes
        total = progress.total_bytes
        write_error(
            f"{progress.phase} {percent(min(done, total), total):3}%  {done / 1e6:,.0f}/{total / 1e6:,.0f} MB"
        )
