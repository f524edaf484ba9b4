"""What a capture level costs, and that a record grows with its messages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from harness import Load, race, run_measured, scratch, stub_server, windrow
from results import Section, number, table
from scenarios import Options

TITLE = "Capture levels, and the size of a record"
LEVELS = ("none", "text", "logprobs", "tokens")
ABOUT = """
Rollouts of 512 tokens at each level (start-up included in the CPU time), and episodes of many turns. The record grows with
its messages, not with turns × context.
"""


def run(options: Options) -> Section:
    return Section(TITLE, ABOUT, [levels(options), turns(options)])


def levels(options: Options) -> str:
    load = options.size(Load(200, 8, 64), Load(5, 2, 8))
    sides = [windrow(load, "--no-aggregate", "--capture", level, name=level) for level in LEVELS]
    result = race(sides, repeats=options.size(2, 1), stub=("--tokens", "512"))
    rows = []
    for level in LEVELS:
        best = result.best(level)
        rows.append([level, f"{best.cpu_ms_per_rollout:.2f}", number(best.bytes_per_rollout)])
    return table(["capture", "CPU ms a rollout", "bytes a rollout"], rows)


def turns(options: Options) -> str:
    rows = []
    with scratch() as folder, stub_server("--tokens", "32") as url:
        for count in options.size((50, 100, 200), (5, 10)):
            size = record_bytes(folder / str(count), url, count)
            rows.append([str(count), f"{size:,}", number(size / count)])
    return table(["turns", "bytes", "bytes a turn"], rows)


def record_bytes(folder: Path, url: str, count: int) -> int:
    """The size of the record of one episode of `count` turns."""
    folder.mkdir()
    script = [f"And then? ({turn})" for turn in range(count - 1)]
    tasks, out = folder / "tasks.jsonl", folder / "run"
    tasks.write_text(json.dumps({"id": "a", "prompt": "Go on.", "script": script}) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "windrow", "collect", str(tasks), "--model", "stub", "--base-url", url]
    command += ["--out", str(out), "--quiet", "--env", "chat", "--max-turns", str(count)]
    run_measured(command)
    return (out / "rollouts.jsonl").stat().st_size
