"""What reading a run costs as it grows: seconds, lines a second and peak memory, beside the floor.

The floor reads the log's lines and decodes what a resume needs of each; nothing is kept. Each command is a process of its
own, start-up included. The runs are made by `make_run.py`: complete, so `collect` has nothing left to do.

    python bench/reading.py
    python bench/reading.py --sizes 10000 100000 --json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import make_run
from harness import Failed, run_measured

SIZES = (10_000, 100_000, 1_000_000)
TIMEOUT_S = 900
FLOOR = """
import sys
import msgspec
from windrow.store.line_heads import Head
decode = msgspec.json.Decoder(Head).decode
with open(sys.argv[1], "rb") as file:
    for line in file:
        decode(line)
"""


@dataclass(frozen=True)
class Reading:
    what: str
    rollouts: int
    seconds: float
    cpu_seconds: float
    peak_rss_mb: float

    @property
    def lines_per_s(self) -> float:
        return self.rollouts / self.seconds


def commands(folder: Path) -> dict[str, list[str]]:
    """What is measured, by name, each as a whole command line."""
    windrow = [sys.executable, "-m", "windrow"]
    run = str(folder / "run")
    collect = [*windrow, *make_run.command(folder), "--quiet"]
    anew = ["sh", "-c", 'rm -f "$0" && exec "$@"', f"{run}/metrics.cache"]  # as if it had changed since
    return {
        "floor: lines and heads": [sys.executable, "-c", FLOOR, f"{run}/rollouts.jsonl"],
        "stats, changed run": [*anew, *windrow, "stats", run],
        "collect, all done, no index yet, --no-aggregate": [*collect, "--no-aggregate"],
        "collect, all done, --no-aggregate": [*collect, "--no-aggregate"],
        "collect, all done, changed run": [*anew, *collect],
        "collect, all done": collect,
        "stats": [*windrow, "stats", run],
        "show (a line a rollout)": [*windrow, "show", run],
        "ls": [*windrow, "ls", run],
    }


def measured(what: str, command: list[str], rollouts: int) -> Reading:
    with open(os.devnull, "wb") as nowhere:
        usage = run_measured(command, out=nowhere, timeout_s=TIMEOUT_S)
    return Reading(what, rollouts, usage.seconds, usage.cpu_seconds, usage.peak_rss_mb)


def measure(sizes: list[int], *, repeats: int = 1, scratch: Path | None = None) -> list[Reading]:
    """Every command at every size, the quickest of its repeats."""
    readings: list[Reading] = []
    with tempfile.TemporaryDirectory(prefix="windrow-reading-", dir=scratch) as home:
        for size in sizes:
            folder = Path(home) / str(size)
            made = [sys.executable, make_run.__file__, str(folder), "--rollouts", str(size)]
            subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
            for what, command in commands(folder).items():
                tries = []
                for _ in range(repeats):
                    if "no index yet" in what:
                        shutil.rmtree(folder / "run" / "index", ignore_errors=True)
                    tries.append(measured(what, command, size))
                readings.append(min(tries, key=lambda reading: reading.cpu_seconds))
    return readings


def table(readings: list[Reading]) -> str:
    """Markdown. `of the floor` compares CPU seconds at the same size."""
    floors = {reading.rollouts: reading for reading in readings if reading.what.startswith("floor")}
    rows = [
        "| | rollouts | seconds | CPU s | rollouts/s | times the floor's CPU | peak MB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for reading in sorted(readings, key=lambda reading: list(floors).index(reading.rollouts)):
        times = reading.cpu_seconds / floors[reading.rollouts].cpu_seconds
        rows.append(
            f"| {reading.what} | {reading.rollouts:,} | {reading.seconds:.2f} | {reading.cpu_seconds:.2f} "
            f"| {reading.lines_per_s:,.0f} | {times:.1f} | {reading.peak_rss_mb:.0f} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), help="rollouts a run")
    parser.add_argument("--repeats", type=int, default=1, help="the quickest counts")
    parser.add_argument(
        "--scratch",
        type=lambda text: Path(text).resolve(),
        help="where the runs are made (1.5 GB a million rollouts)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a measurement")
    given = parser.parse_args()
    try:
        readings = measure(given.sizes, repeats=given.repeats, scratch=given.scratch)
    except Failed as failure:
        sys.exit(str(failure))
    if given.json:
        for reading in readings:
            print(json.dumps(asdict(reading)))
    else:
        print(table(readings))


if __name__ == "__main__":
    main()
