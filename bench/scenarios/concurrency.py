"""Ten thousand episodes of three turns in flight, and the memory that they take."""

from __future__ import annotations

from harness import Load, floor, race, windrow
from results import Section, commands_of, race_table
from scenarios import Options

TITLE = "Many episodes in flight"
ABOUT = """
Episodes of three turns, half of them in flight at a time, each reply after the server's latency. Windrow plays them in an
environment (`bench/three_turns.py`) with a record of each turn; the floor keeps a list of messages. Both hold a connection
an episode.
"""


def run(options: Options) -> Section:
    load = options.size(Load(20_000, 1, 10_000), Load(100, 1, 50))
    stub = ("--latency-ms", str(options.size(1000, 50)))
    sides = [floor(load, "--turns", "3"), windrow(load, "--env", "three_turns:ThreeTurns")]
    result = race(sides, repeats=options.size(2, 1), stub=stub)
    ours, least = result.best("windrow"), result.best("floor")
    sentence = (
        f"Windrow reaches **{ours.rollouts_per_s / least.rollouts_per_s:.2f}** of the floor's episodes/s with"
        f" **{ours.peak_rss_mb / 1000:.2f} GB** at its peak. The aim is 0.90 or more, and 0.5 GB or less."
    )
    return Section(TITLE, ABOUT, [race_table(result), sentence], commands_of(sides, stub))
