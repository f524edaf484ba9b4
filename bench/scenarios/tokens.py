"""Replies of 512 tokens with ids and logprobs: what keeping them costs."""

from __future__ import annotations

from harness import Load, floor, race, windrow
from peers import INSPECT, LEGACY
from results import Section, commands_of, race_table
from scenarios import Options

TITLE = "Token ids and logprobs"
ABOUT = """
Replies of 512 tokens, each with its id and logprob, decoded and kept. The floor writes them as JSON numbers, windrow as
arrays of 32 bits. Inspect keeps logprobs without ids; an evaluation with verifiers 0.4 keeps neither, so it has no row.
"""


def run(options: Options) -> Section:
    load = options.size(Load(400, 8, 256), Load(5, 4, 8))
    stub = ("--tokens", "512")
    fewer = options.size(Load(25, 8, 64), Load(5, 2, 4))
    sides = [
        floor(load, "--logprobs"),
        windrow(load, "--scorer", "number", "--capture", "tokens"),
        *options.peers.sides(fewer, "--token-data", repeats=1, only=(LEGACY, INSPECT)),
    ]
    result = race(sides, repeats=options.size(3, 1), stub=stub)
    ours, least = result.best("windrow"), result.best("floor")
    sentence = (
        f"Windrow takes **{ours.cpu_ms_per_rollout / least.cpu_ms_per_rollout:.2f}** times the floor's CPU."
        " The aim is 1.2 or less."
    )
    body = [race_table(result, bytes_too=True), sentence]
    return Section(TITLE, ABOUT, body, commands_of(sides, stub), (*options.peers.notes, *result.notes))
