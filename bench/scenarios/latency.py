"""A model that takes a second to answer: how much of the ideal is reached when waiting costs nothing."""

from __future__ import annotations

from harness import Load, Race, floor, race, windrow
from peers import INSPECT, LEGACY, VERIFIERS
from results import Section, commands_of, number, table
from scenarios import Options

TITLE = "A model with latency"
ABOUT = """
Every reply takes its latency to come, however many are in flight. The ideal is rollouts in flight / latency; what is
missing is the collector's, and its start-up.
"""


def run(options: Options) -> Section:
    load = options.size(Load(320, 8, 256), Load(8, 2, 8))
    latency_ms = options.size(1000, 100)
    stub = ("--latency-ms", str(latency_ms))
    fewer = options.size(Load(128, 8, 256), Load(8, 1, 8))
    sides = [
        floor(load),
        windrow(load, "--scorer", "number"),
        *options.peers.sides(fewer, repeats=1, only=(VERIFIERS, LEGACY, INSPECT)),
    ]
    result = race(sides, repeats=options.size(2, 1), stub=stub)
    body = [ideal_table(result, 1000 * load.concurrency / latency_ms)]
    return Section(TITLE, ABOUT, body, commands_of(sides, stub), (*options.peers.notes, *result.notes))


def ideal_table(result: Race, ideal: float) -> str:
    rows = []
    for name in result.samples:
        best = result.best(name)
        rate = best.rollouts_per_s
        cpu = f"{best.cpu_ms_per_rollout:.3f}"
        rows.append(
            [name, f"{best.rollouts:,}", number(rate), f"{rate / ideal:.2f}", cpu, number(best.peak_rss_mb)]
        )
    header = ["", "rollouts", "rollouts/s", f"of the ideal {ideal:,.0f}", "CPU ms a rollout", "peak MB"]
    return table(header, rows)
