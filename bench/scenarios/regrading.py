"""A run that is graded again, and two halves of one that are merged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness import HERE, run_measured, scratch
from results import Section, number, table
from scenarios import Options

TITLE = "Rescoring and merging"
ABOUT = """
A complete run is graded again by a scorer that costs next to nothing (`contains`); and two runs, each with every other
task of it, are merged. Each command is a process of its own, start-up and metrics.json included.
"""
TIMEOUT_S = 900
WINDROW = [sys.executable, "-m", "windrow"]


def run(options: Options) -> Section:
    rollouts = options.size(100_000, 2_000)
    with scratch() as folder:
        made = [sys.executable, str(HERE / "make_run.py"), str(folder), "--rollouts", str(rollouts)]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        whole = folder / "run"
        halves = [half_of(whole, folder / f"half-{number}", number) for number in (0, 1)]
        commands = {
            "merge, two halves": [*WINDROW, "merge", *halves, "-o", str(folder / "merged"), "--quiet"],
            "rescore, a cheap scorer": [*WINDROW, "rescore", str(whole), "--scorer", "contains", "--quiet"],
        }
        rows = [cells(what, command, rollouts) for what, command in commands.items()]
    header = ["", "rollouts", "seconds", "CPU s", "CPU µs a rollout", "peak MB"]
    aim = "The aim is 60 µs a rollout or less for a merge, and 110 for a rescore."
    return Section(TITLE, ABOUT, [table(header, rows), aim])


def half_of(run: Path, to: Path, number: int) -> str:
    """A copy of the run that has the rollouts of every other task."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("rollouts.jsonl", "lock*"))
    groups: dict[bytes, int] = {}
    with (run / "rollouts.jsonl").open("rb") as lines, (to / "rollouts.jsonl").open("wb") as half:
        for line in lines:
            group = line.partition(b'"group":"')[2].partition(b'"')[0]
            if groups.setdefault(group, len(groups)) % 2 == number:
                half.write(line)
    return str(to)


def cells(what: str, command: list[str], rollouts: int) -> list[str]:
    with open(os.devnull, "wb") as nowhere:
        usage = run_measured(command, out=nowhere, timeout_s=TIMEOUT_S)
    return [
        what,
        f"{rollouts:,}",
        f"{usage.seconds:.2f}",
        f"{usage.cpu_seconds:.2f}",
        f"{1e6 * usage.cpu_seconds / rollouts:.1f}",
        number(usage.peak_rss_mb),
    ]
