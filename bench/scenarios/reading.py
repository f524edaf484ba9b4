"""Reading a run back: a million rollouts, resumed and counted."""

from __future__ import annotations

import json
import sys

from harness import HERE, run_measured, scratch
from results import Section, number, table
from scenarios import Options

TITLE = "Reading a run"
ABOUT = """
Commands over complete runs of growing size, each a process of its own, start-up included. The floor reads the log's lines
and decodes what a resume needs of each. The first `collect` finds no index of the run and writes one, which the next goes by.
"""
TIMEOUT_S = 1800


def run(options: Options) -> Section:
    sizes = options.size(["10000", "100000", "1000000"], ["200", "2000"])
    with scratch() as folder, (folder / "said").open("w+b") as out:
        command = [sys.executable, str(HERE / "reading.py"), "--json", "--sizes", *sizes]
        run_measured(command, out=out, timeout_s=TIMEOUT_S)
        out.seek(0)
        said = [json.loads(line) for line in out]
    floors = {one["rollouts"]: one["cpu_seconds"] for one in said if one["what"].startswith("floor")}
    rows = [cells(one, floors[one["rollouts"]]) for one in said]
    header = ["", "rollouts", "seconds", "CPU s", "× the floor", "CPU µs a rollout", "peak MB"]
    aim = (
        "The aim at a million rollouts: `stats` of a changed run takes 4 times the floor or less; `stats` and `collect` of an"
        " unchanged one take a second or less."
    )
    return Section(
        TITLE, ABOUT, [table(header, rows), aim], [f"python bench/reading.py --sizes {' '.join(sizes)}"]
    )


def cells(reading: dict[str, float], floor_cpu_seconds: float) -> list[str]:
    rollouts, cpu = reading["rollouts"], reading["cpu_seconds"]
    return [
        str(reading["what"]),
        f"{rollouts:,}",
        f"{reading['seconds']:.2f}",
        f"{cpu:.2f}",
        f"{cpu / floor_cpu_seconds:.1f}",
        f"{1e6 * cpu / rollouts:.2f}",
        number(reading["peak_rss_mb"]),
    ]
