"""More processes on one machine."""

from __future__ import annotations

from harness import Load, race, windrow
from results import Section, commands_of, number, table
from scenarios import Options

TITLE = "Worker processes"
COUNTS = (1, 2)
ABOUT = """
The same single-turn rollouts by one process and by several. The stub server shares the cores with them: more
workers than cores less one cannot show their worth here. The parent's CPU is that of its own process while the workers
run: it leases slots, counts what is committed, and bounds how many workers are of use.
"""


def run(options: Options) -> Section:
    load = options.size(Load(2000, 8, 256), Load(10, 4, 8))
    sides = [
        windrow(load, "--scorer", "number", "--workers", str(count), name=str(count)) for count in COUNTS
    ]
    result = race(sides, repeats=options.size(3, 1))
    alone = result.best(str(COUNTS[0]))
    rows = []
    for side in sides:
        best = result.best(side.name)
        speed_up = f"{best.rollouts_per_s / alone.rollouts_per_s:.2f}"
        cpu = f"{best.cpu_ms_per_rollout:.3f}"
        parent = "–" if side is sides[0] else f"{best.parent_cpu_ms_per_rollout:.3f}"
        rows.append([side.name, number(best.rollouts_per_s), speed_up, cpu, parent, number(best.peak_rss_mb)])
    header = [
        "workers",
        "rollouts/s",
        "speed-up",
        "CPU ms a rollout",
        "parent's CPU ms a rollout",
        "peak MB, all processes",
    ]
    aim = "The aim for the parent is 0.03 ms a rollout or less."
    return Section(TITLE, ABOUT, [table(header, rows), aim], commands_of(sides))
