"""Episodes of many turns with a tool: a turn costs the same, however many came before it."""

from __future__ import annotations

from harness import Load, Race, floor, race, windrow
from results import Section, commands_of, table
from scenarios import Options

TITLE = "Many turns with a tool"
ABOUT = """
Each reply calls a tool (`bench/look_up.py`) until the last one answers, and every request sends the whole conversation. The
floor holds a conversation of as many turns, in text alone, and encodes all of it for every turn. As many turns in all in
each row, in fewer episodes the longer they are; CPU of the whole command, by turn.
"""


def run(options: Options) -> Section:
    counts = options.size((8, 32, 128), (4, 8))
    rows, commands, ratio = [], [], 0.0
    for count in counts:
        load = Load(options.size(32_768, 64) // count, 1, options.size(64, 8))
        flags = ("--env", "tool", "--tool", "look_up:look_up", "--max-turns", str(count))
        sides = [floor(load, "--turns", str(count)), windrow(load, *flags)]
        stub = ("--tool-turns", str(count - 1))
        result = race(sides, repeats=options.size(3, 1), stub=stub)
        least, ours = (turn_us(result, name, count) for name in ("floor", "windrow"))
        ratio = ours / least
        rows.append([str(count), f"{load.rollouts:,}", f"{least:.0f}", f"{ours:.0f}", f"{ratio:.2f}"])
        commands += commands_of(sides, stub)
    header = ["turns", "episodes", "floor, CPU µs a turn", "windrow, CPU µs a turn", "× the floor"]
    sentence = (
        f"At {counts[-1]} turns, a turn with a tool takes **{ratio:.2f}** times the floor's turn of text."
        " The aim is 1.0 or less, and no more than at fewer turns."
    )
    return Section(TITLE, ABOUT, [table(header, rows), sentence], commands)


def turn_us(result: Race, name: str, turns: int) -> float:
    best = result.best(name)
    return 1e6 * best.cpu_seconds / best.rollouts / turns
