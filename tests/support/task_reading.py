"""Reading task files in tests: bytes in, tasks or one error out; and reading a run to compare it with another."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

import windrow
from windrow.envs.problem import Problem
from windrow.errors import UsageError
from windrow.records import Task
from windrow.tasks.rows import open_rows
from windrow.tasks.scan import Source, scan


def scanned(path: str | Path, *, skip_invalid: bool = False, name: str = "tasks") -> Source:
    """The file as the `problem` environment takes it."""
    return scan(open_rows(str(path)), name=name, check=Problem.check_row, skip_invalid=skip_invalid)


def tasks_in(path: str | Path) -> list[Task]:
    source = scanned(path)
    return [source.task(position) for position in range(len(source))]


def refusal(path: str | Path) -> str:
    """The error that the file gives."""
    try:
        source = scanned(path)
    except UsageError as problem:
        return str(problem)
    raise AssertionError(f"{path} was read as {len(source)} tasks")


def lines_are_unique(run: Path) -> bool:
    """One line an attempt, one done line a slot, one grading an attempt and scorer."""
    logs = sorted(run.glob("rollouts*.jsonl"))
    lines = [json.loads(line) for log in logs for line in log.read_bytes().splitlines()]
    gradings = [json.loads(line) for line in (run / "scores.jsonl").read_bytes().splitlines()]
    attempts = Counter((line["id"], line["attempt"]) for line in lines)
    done = Counter(line["id"] for line in lines if line["status"] == "completed")
    graded = Counter((*map(tuple, grading["members"]), grading["scorer"]) for grading in gradings)
    tasks = Counter((run / "tasks.jsonl").read_bytes().splitlines())
    return all(count == 1 for found in (attempts, done, graded, tasks) for count in found.values())


def records(run: Path) -> list[dict[str, Any]]:
    """Every attempt of a run in order, scores folded in, without what no two runs share: times."""
    found = [msgspec.to_builtins(rollout) for rollout in windrow.load(run, attempts="all")]
    for rollout in found:
        del rollout["timing"]
        for turn in rollout["turns"]:
            for volatile in ("started_at", "seconds", "first_token_s", "tools_seconds"):
                turn.pop(volatile, None)
    return found
