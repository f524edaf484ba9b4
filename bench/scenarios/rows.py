"""Training rows: tokens a second from recorded turns, and that a long rollout stores each token once."""

from __future__ import annotations

import json
import sys

from harness import HERE, run_measured, scratch
from results import Section, number, table
from scenarios import Options

TITLE = "Training rows"
ABOUT = """
Recorded turns to `input_ids`, `loss_mask` and `logprobs`, on one core, in millions of tokens of rows a second of CPU. The
floor copies three arrays of that size. Ids stored are those of one rollout's line: each once; a fork adds those in which it
differs.
"""
MILLION = 1_000_000
AIM = 5.0


def run(options: Options) -> Section:
    tokens = options.size("3000000", "20000")
    with scratch() as folder, (folder / "said").open("w+b") as out:
        run_measured([sys.executable, str(HERE / "training_rows.py"), "--json", "--tokens", tokens], out=out)
        out.seek(0)
        said = [json.loads(line) for line in out]
    header = [
        "",
        "tokens in rows",
        "ids stored",
        "bytes a line",
        "floor M/s",
        "build M/s",
        "decode and build M/s",
    ]
    slowest = min(one["build_per_s"] for one in said) / MILLION
    sentence = f"The slowest builds **{slowest:.1f}** million tokens a second. The aim is {AIM:.0f} or more."
    command = f"python bench/training_rows.py --tokens {tokens}"
    return Section(TITLE, ABOUT, [table(header, [cells(one) for one in said]), sentence], [command])


def cells(one: dict[str, float]) -> list[str]:
    rates = (one["floor_per_s"], one["build_per_s"], one["decode_and_build_per_s"])
    counts = (one["tokens"], one["stored"], one["line_bytes"])
    return [
        str(one["what"]),
        *(f"{count:,}" for count in counts),
        *(number(rate / MILLION) for rate in rates),
    ]
