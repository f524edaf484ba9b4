"""The embedded model: tokens per second by threads."""

from __future__ import annotations

import json
import sys

from harness import HERE, Failed, run_measured, scratch
from results import Section, table
from scenarios import Options, Skipped

TITLE = "Threads of the embedded model"
ABOUT = """
Tokens per second of SmolLM2-135M on the machine as it is, and beside as many spinning processes as cores. llama.cpp's
threads wait for each other in a spin, so one thread too many can cost more than one too few: `--model local` takes as many
as there are idle cores, at least one.
"""


def run(options: Options) -> Section:
    calls = options.size("8", "2")
    with scratch() as folder, (folder / "said").open("w+b") as out:
        try:
            run_measured(
                [sys.executable, str(HERE / "local_threads.py"), "--json", "--calls", calls], out=out
            )
        except Failed as failure:
            if "models pull" not in str(failure):
                raise
            raise Skipped("the embedded model is not there (`windrow models pull`)") from None
        out.seek(0)
        said = [json.loads(line) for line in out]
    threads = sorted({row["threads"] for row in said})
    rows = []
    for machine in ("quiet", "busy"):
        rates = [row["tokens_per_s"] for row in said if row["machine"] == machine]
        rows.append([machine, *(f"{rate:.1f}" for rate in rates)])
    header = ["", *(f"{count} thread{'s' * (count > 1)}" for count in threads)]
    return Section(TITLE, ABOUT, [table(header, rows)], [f"python bench/local_threads.py --calls {calls}"])
