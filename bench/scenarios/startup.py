"""What the command takes before it works: nobody waits for one rollout."""

from __future__ import annotations

import sys

from harness import Load, Usage, floor, progress, run_measured, scratch, stub_server, windrow
from results import Section, table
from scenarios import Options

TITLE = "Start-up"
ABOUT = """
The least of repeats in turns. One rollout is a whole run: the endpoint is probed, the run directory made, the metrics
written.
"""
ONE = Load(1, 1, 1)
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "windrow --version": [sys.executable, "-m", "windrow", "--version"],
    "windrow collect --help": [sys.executable, "-m", "windrow", "collect", "--help"],
}


def run(options: Options) -> Section:
    taken: dict[str, list[Usage]] = {}
    with stub_server() as url:
        for _ in range(options.size(10, 1)):
            for name, command in COMMANDS.items():
                taken.setdefault(name, []).append(run_measured(command))
            for side in (floor(ONE), windrow(ONE, "--scorer", "number")):
                with scratch() as folder:
                    sample = side.measure(url, folder)
                usage = Usage(sample.seconds, sample.cpu_seconds, sample.peak_rss_mb)
                taken.setdefault(f"one rollout, {side.name}", []).append(usage)
    rows = []
    for name, uses in taken.items():
        seconds, cpu = min(use.seconds for use in uses), min(use.cpu_seconds for use in uses)
        progress(f"    {name:24} {seconds:.3f} s {cpu:.3f} CPU s")
        rows.append([name, f"{seconds:.3f}", f"{cpu:.3f}"])
    aim = "The aim for one rollout is 0.25 s or less."
    return Section(TITLE, ABOUT, [table(["", "seconds", "CPU s"], rows), aim])
