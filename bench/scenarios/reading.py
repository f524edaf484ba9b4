"""Reading a run back: a million rollouts, resumed and counted."""

from __future__ import annotations

import json
import sys

from harness import HERE, run_measured, scratch
from results import Section, number, table
from scenarios import Options, Skipped

TITLE = "Reading a run"
ABOUT = """
Commands over complete runs of growing size, each a process of its own. The floor reads the log's lines and decodes what a
resume needs of each.
"""


def run(options: Options) -> Section:
    script = HERE / "reading.py"
    if not script.exists():
        raise Skipped("`bench/reading.py` is not there yet")
    sizes = options.size(["10000", "100000", "1000000"], ["200", "2000"])
    with scratch() as folder, (folder / "said").open("w+b") as out:
        command = [sys.executable, str(script), "--json", "--sizes", *sizes]
        run_measured(command, out=out)
        out.seek(0)
        rows = [cells(json.loads(line)) for line in out]
    header = ["", "rollouts", "seconds", "CPU s", "CPU µs a rollout", "peak MB"]
    return Section(
        TITLE, ABOUT, [table(header, rows)], [f"python bench/reading.py --sizes {' '.join(sizes)}"]
    )


def cells(reading: dict[str, float]) -> list[str]:
    rollouts, cpu = reading["rollouts"], reading["cpu_seconds"]
    each = f"{1e6 * cpu / rollouts:.2f}"
    seconds = f"{reading['seconds']:.2f}"
    return [
        str(reading["what"]),
        f"{rollouts:,}",
        seconds,
        f"{cpu:.2f}",
        each,
        number(reading["peak_rss_mb"]),
    ]
