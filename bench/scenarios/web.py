"""Browser contexts at once: the pool beside a bare Playwright loop."""

from __future__ import annotations

import json
import sys

from harness import HERE, Failed, progress, run_measured, scratch
from results import Section, number, table
from scenarios import Options, Skipped

TITLE = "Browser contexts at once"
ABOUT = """
A step is a real click, a value read back and a look at the page (1280 × 768), in one Chromium. The bare loop calls Playwright
and nothing else; the pool checks every command against its lease, bounds it and writes it down; `collect` is a whole run in the
environment `web`, which also waits for the page to rest, reads a reply each turn, and keeps the record and its images. Its PNGs are
compressed for speed; what the bare loop makes of such PNGs (`png-fast`) stands beside. Below, an
episode is a context that is made, loaded, clicked in once and given back, eight at a time; with `reuse`, its page is taken over.
"""
SIDES = ("bare", "pool", "collect")
Found = dict[str, float]


def run(options: Options) -> Section:
    contexts, steps, count, repeats = options.size((64, 10, 200, 1), (4, 2, 8, 1))
    loops = [(side, look) for look in ("png", "text") for side in SIDES]
    loops.insert(len(SIDES), ("bare", "png-fast"))
    flags = ["--contexts", str(contexts), "--steps", str(steps)]
    found = measured([(side, [*flags, "--look", look]) for side, look in loops], repeats)
    stepped = dict(zip(loops, found, strict=True))
    played = measured([(side, ["--episodes", str(count)]) for side in ("bare", "pool", "reuse")], repeats)
    rows = [
        step_row(side, look, best, stepped["bare", look.removesuffix("-fast")])
        for (side, look), best in stepped.items()
    ]
    header = ["", "look", "steps/s", "of the bare loop", "CPU ms a step", "contexts made/s", "MB a context"]
    again = [episode_row(side, best) for side, best in zip(("bare", "pool", "reuse"), played, strict=True)]
    pool, whole = (share(stepped, side) for side in ("pool", "collect"))
    sentence = (
        f"With {contexts} contexts, the pool makes at least **{pool:.2f}** of the bare loop's steps/s, a whole run"
        f" **{whole:.2f}**. The aim for a run is 0.85 or more with PNG, and 0.95 with text."
    )
    blocks = [table(header, rows), sentence, table(["", "episodes/s", "CPU ms an episode"], again)]
    words = " ".join(flags)
    commands = [f"python bench/web.py --side {side} {words} --look {look}" for side, look in loops]
    commands += [
        f"python bench/web.py --side {side} --episodes {count}" for side in ("bare", "pool", "reuse")
    ]
    return Section(TITLE, ABOUT, blocks, commands)


def measured(sides: list[tuple[str, list[str]]], repeats: int) -> list[Found]:
    """The best of each side's runs; they take turns."""
    found: list[list[Found]] = [[] for _ in sides]
    for _ in range(repeats):
        for (side, flags), runs in zip(sides, found, strict=True):
            runs.append(said(side, flags))
            progress(f"    {side:6} {' '.join(flags)}: {runs[-1]}")
    return [best(runs) for runs in found]


def best(runs: list[Found]) -> Found:
    """The most of what is a rate, the least of what is a cost."""
    return {name: (max if name.endswith("_per_s") else min)(run[name] for run in runs) for name in runs[0]}


def said(side: str, flags: list[str]) -> Found:
    with scratch() as folder, (folder / "said").open("w+b") as out:
        try:
            run_measured([sys.executable, str(HERE / "web.py"), "--side", side, *flags], out=out)
        except Failed as failure:
            if "playwright" in str(failure) and "No module" in str(failure):
                raise Skipped("Playwright is not there (`pip install 'windrow-rl[web]'`)") from None
            raise
        out.seek(0)
        found: Found = json.loads(out.read())
    return found


def share(stepped: dict[tuple[str, str], Found], side: str) -> float:
    """The least part of the bare loop's rate."""
    return min(
        best["steps_per_s"] / stepped["bare", look]["steps_per_s"]
        for (who, look), best in stepped.items()
        if who == side
    )


def step_row(side: str, look: str, best: Found, bare: Found) -> list[str]:
    return [
        side,
        look,
        number(best["steps_per_s"]),
        f"{best['steps_per_s'] / bare['steps_per_s']:.2f}",
        f"{best['cpu_ms_per_step']:.1f}",
        number(best["contexts_per_s"]) if "contexts_per_s" in best else "",
        f"{best['mb_per_context']:.1f}" if "mb_per_context" in best else "",
    ]


def episode_row(side: str, best: Found) -> list[str]:
    return [side, number(best["episodes_per_s"]), f"{best['cpu_ms_per_episode']:.1f}"]
