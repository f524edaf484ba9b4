"""Measure windrow beside the floor and its peers, and write RESULTS.md.

    make bench                                   # everything, about a quarter of an hour on two cores
    python bench/all.py --only single,tokens     # these sections again; the others stay as they are
    python bench/all.py --fast --no-peers        # does it all work? numbers of no meaning, in .bench/

The peers' environments are made under .bench/ on the first run.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import results
from harness import HERE, Failed, progress, unwind_on_term
from peers import CACHE, NOBODY, gather
from scenarios import (
    Options,
    Scenario,
    Skipped,
    capture,
    concurrency,
    latency,
    memory,
    reading,
    regrading,
    rows,
    single,
    startup,
    threads,
    tokens,
    turns,
    verdicts,
    web,
    workers,
)

SCENARIOS: dict[str, Scenario] = {
    "single": single,
    "tokens": tokens,
    "latency": latency,
    "concurrency": concurrency,
    "turns": turns,
    "memory": memory,
    "reading": reading,
    "regrading": regrading,
    "verdicts": verdicts,
    "startup": startup,
    "workers": workers,
    "capture": capture,
    "rows": rows,
    "threads": threads,
    "web": web,
}
WITH_PEERS = {"single", "tokens", "latency"}


def measure(name: str, options: Options) -> results.Section:
    """The scenario's section; one that cannot be run here says so in its place."""
    scenario = SCENARIOS[name]
    try:
        return scenario.run(options)
    except Skipped as why:
        return results.Section(scenario.TITLE, scenario.ABOUT, [f"Not measured: {why}."])


def run(names: list[str], options: Options, out: Path) -> list[str]:
    """Write each section as soon as it is measured; the names of those that failed."""
    failed = []
    order = [scenario.TITLE for scenario in SCENARIOS.values()]
    for name in names:
        started = time.monotonic()
        progress(name)
        try:
            section = measure(name, options)
        except Failed as failure:
            progress(f"    FAILED: {failure}")
            failed.append(name)
        else:
            results.update(out, section, f"python bench/all.py --only {name}", order)
            progress(f"    {time.monotonic() - started:.0f} s")
    return failed


def scenario_names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=scenario_names, default=list(SCENARIOS), help=", ".join(SCENARIOS))
    parser.add_argument("--no-peers", action="store_true", help="only the floor and windrow")
    parser.add_argument("--fast", action="store_true", help="tiny sizes: to see that it works")
    parser.add_argument("--out", type=Path, help="instead of RESULTS.md; of --fast: .bench/fast.md")
    given = parser.parse_args()
    unwind_on_term()
    peers = NOBODY if given.no_peers or not WITH_PEERS & set(given.only) else gather()
    out = given.out or (CACHE / "fast.md" if given.fast else HERE / "RESULTS.md")
    failed = run(given.only, Options(fast=given.fast, peers=peers), out)
    progress(f"wrote {out}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
