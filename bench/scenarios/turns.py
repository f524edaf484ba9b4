"""Episodes of many turns with a tool: a turn costs the same, however many came before it."""

from __future__ import annotations

from harness import Load, Race, floor, race, windrow
from results import Section, table
from scenarios import Options

TITLE = "Many turns with a tool"
ABOUT = """
Each reply calls a tool (`bench/look_up.py`) until the last one answers; every request sends the whole conversation. The
floor holds a conversation of as many turns, of text alone, and encodes all of it for every turn. CPU a turn, start-up
taken off: what episodes of one turn took is subtracted.
"""
EPISODES = 256


def run(options: Options) -> Section:
    counts = options.size((8, 32, 128), (4, 8))
    load = options.size(Load(EPISODES, 1, 32), Load(8, 1, 4))
    rows, ratios, commands = [], [], []
    for count in counts:
        sides = [
            floor(load, "--turns", str(count)),
            windrow(load, "--env", "tool", "--tool", "look_up:look_up", "--max-turns", str(count)),
        ]
        stub = ("--tool-turns", str(count - 1), "--tool-arguments", '{"place":7}')
        result = race(sides, repeats=options.size(3, 1), stub=stub)
        least, ours = (turn_us(result, name, count) for name in ("floor", "windrow"))
        ratios.append(ours / least)
        rows.append([str(count), f"{least:.0f}", f"{ours:.0f}", f"{ours / least:.2f}"])
        commands += [f"python bench/stub_server.py {' '.join(stub)}", *(side.command for side in sides)]
    header = ["turns", "floor, CPU µs a turn", "windrow, CPU µs a turn", "× the floor"]
    sentence = (
        f"At {counts[-1]} turns, a turn with a tool takes **{ratios[-1]:.2f}** times the floor's turn of text."
        " The aim is 1.0 or less."
    )
    return Section(TITLE, ABOUT, [table(header, rows), sentence], commands)


def turn_us(result: Race, name: str, turns: int) -> float:
    best = result.best(name)
    return 1e6 * best.cpu_seconds / best.rollouts / turns
