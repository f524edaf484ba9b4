"""Play a rollout again: its recorded replies go through its environment, and what comes out otherwise is shown.

No model is asked. Exit code 0: everything came out as recorded; 1: something did not.
"""

from __future__ import annotations

import argparse
import asyncio

from windrow.cli.flags import add_trust_run_argument
from windrow.cli.output import write_out
from windrow.cli.text import shorten
from windrow.collecting.replay import find_rollout, replay
from windrow.records import Json, encode

SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run directory")
    parser.add_argument("id", help="a rollout id, or its first characters")
    parser.add_argument("--attempt", type=int, metavar="N", help="this attempt (the final one)")
    add_trust_run_argument(parser, "use the environment, tools and scorers that it names")


def run(arguments: argparse.Namespace) -> int:
    rollout = find_rollout(arguments.run, arguments.id, number=arguments.attempt)
    replayed = asyncio.run(replay(arguments.run, rollout, trust_run=arguments.trust_run))
    for difference in replayed.differences[:SHOWN]:
        write_out(f"{difference.path}")
        write_out(f"  recorded  {_text(difference.recorded)}")
        write_out(f"  replayed  {_text(difference.replayed)}")
    count = len(replayed.differences)
    if count > SHOWN:
        write_out(f"… and {count - SHOWN} more")
    turns = f"{len(rollout.turns)} turn{'s' * (len(rollout.turns) != 1)}"
    if count:
        write_out(f"{rollout.id}: {count} difference{'s' * (count > 1)} in {turns}")
        return 1
    write_out(f"{rollout.id}: {turns} came out as recorded")
    return 0


def _text(value: Json) -> str:
    return shorten(encode(value).decode(), 200)
