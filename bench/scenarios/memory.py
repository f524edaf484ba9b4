"""Peak memory as a run grows."""

from __future__ import annotations

from harness import Load, race, windrow
from results import Section, commands_of, number, table
from scenarios import Options

TITLE = "Memory does not grow with the run"
ABOUT = """
One run, and one of ten times its size.
"""


def run(options: Options) -> Section:
    few, many = options.size((2_500, 25_000), (20, 200))
    sides = [windrow(load, "--scorer", "number", name=f"{load.rollouts:,}") for load in loads(few, many)]
    result = race(sides)
    rows = []
    for side in sides:
        best = result.best(side.name)
        cpu = f"{best.cpu_ms_per_rollout:.3f}"
        rows.append([side.name, number(best.rollouts_per_s), cpu, f"{best.peak_rss_mb:.1f}"])
    small, large = (result.best(side.name) for side in sides)
    sentence = (
        f"Peak memory is **{large.peak_rss_mb / small.peak_rss_mb:.2f}** times that of the smaller run, CPU a rollout"
        f" **{large.cpu_ms_per_rollout / small.cpu_ms_per_rollout:.2f}** times. The aim is 1.10 or less."
    )
    header = ["rollouts", "rollouts/s", "CPU ms a rollout", "peak MB"]
    return Section(TITLE, ABOUT, [table(header, rows), sentence], commands_of(sides))


def loads(*tasks: int) -> list[Load]:
    return [Load(count, 8, 256) for count in tasks]
