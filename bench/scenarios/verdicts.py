"""What a verdict costs that is made in a fresh, confined process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from harness import run_measured, scratch
from results import Section, number, table
from scenarios import Options

TITLE = "Verdicts in confined processes"
ABOUT = """
One run is graded again by `contains`, in the command's own process, and by `math`, each verdict in a process that is forked
for it, confined and thrown away. CPU counts all processes. What `math` costs more than `contains` is its verdicts.
"""
TIMEOUT_S = 900
WINDROW = [sys.executable, "-m", "windrow"]
POLICY = """
def reply(request):
    number = int(request.messages[-1].text.split()[-1])
    return f"It is \\\\boxed{{\\\\frac{{{2 * number}}}{{{2 * number + 2}}}}}."
"""


def run(options: Options) -> Section:
    verdicts = options.size(2_000, 100)
    with scratch() as folder:
        collect(folder, verdicts)
        cpu = {}
        rows = []
        for scorer in ("contains", "math"):
            with open(os.devnull, "wb") as nowhere:
                command = [*WINDROW, "rescore", str(folder / "run"), "--scorer", scorer, "--quiet"]
                usage = run_measured(command, out=nowhere, timeout_s=TIMEOUT_S)
            cpu[scorer] = usage.cpu_seconds
            seconds = [f"{usage.seconds:.2f}", f"{usage.cpu_seconds:.2f}"]
            rows.append([scorer, f"{verdicts:,}", *seconds, number(usage.peak_rss_mb)])
    header = ["scorer", "verdicts", "seconds", "CPU s", "peak MB"]
    each_ms = 1000 * (cpu["math"] - cpu["contains"]) / verdicts
    said = f"A verdict of `math` takes {each_ms:.1f} ms of CPU. The aim is 10 ms or less."
    return Section(TITLE, ABOUT, [table(header, rows), said])


def collect(folder: Path, tasks: int) -> None:
    """Make a run of fractions, each of them right and not in lowest terms."""
    (folder / "reducing.py").write_text(POLICY)
    rows = [{"prompt": f"Reduce {n}", "answer": f"\\frac{{{n}}}{{{n + 1}}}"} for n in range(1, tasks + 1)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [*WINDROW, "collect", "tasks.jsonl", "--model", "scripted:reducing:reply", "--scorer", "exact"]
    subprocess.run([*command, "--out", "run", "--quiet"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
