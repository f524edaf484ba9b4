"""Single-turn rollouts without latency: what the collector itself costs."""

from __future__ import annotations

from harness import Load, floor, lean_floor, race, windrow
from results import Section, commands_of, race_table
from scenarios import Options

TITLE = "The collector's own cost, beside the floor"
ABOUT = """
Single-turn rollouts against a stub server without latency. The floor posts, decodes and appends, through aiohttp; it is the
yardstick, and does not change. The lean floor does the same through windrow's own HTTP client. Windrow does it with full records, identity, deadlines, limits, grading, group fsync, and metrics at the end. The peers grade and save too; they
get fewer rollouts, for they need long for them.
"""


def run(options: Options) -> Section:
    load = options.size(Load(1000, 8, 256), Load(10, 4, 8))
    sides = [
        floor(load),
        lean_floor(load),
        windrow(load, "--scorer", "number"),
        *options.peers.sides(options.size(Load(50, 8, 256), Load(5, 2, 4))),
    ]
    result = race(sides, repeats=options.size(5, 1))
    ours, least, lean = result.best("windrow"), result.best("floor"), result.best("lean floor")
    sentence = (
        f"Windrow reaches **{ours.rollouts_per_s / least.rollouts_per_s:.2f}** of the floor's rollouts/s"
        f" at **{ours.cpu_ms_per_rollout / least.cpu_ms_per_rollout:.2f}** times its CPU, and"
        f" **{ours.rollouts_per_s / lean.rollouts_per_s:.2f}** of the lean floor's"
        f" at **{ours.cpu_ms_per_rollout / lean.cpu_ms_per_rollout:.2f}** times its CPU."
        f" The aim is 0.65 or more of the floor's rollouts/s, at 1.5 times its CPU or less."
    )
    body = [race_table(result, bytes_too=True), sentence]
    return Section(TITLE, ABOUT, body, commands_of(sides), (*options.peers.notes, *result.notes))
