"""A small run that is sent to a real tracker."""

from __future__ import annotations

import json
from pathlib import Path

from windrow.cli.main import main

ROWS = [{"id": "one", "prompt": "say 1", "answer": "1"}, {"id": "two", "prompt": "say 2", "answer": "2"}]
WANTED = {  # of every tracker
    "key_metrics/chat/mean/reward": 0.5,
    "key_metrics/chat/pass@1": 0.5,
    "chat/mean/reward": 0.5,
    "chat/mean/score/number": 0.5,
    "chat/majority@2": 0.5,
    "chat/rate/status/completed": 1.0,
}


def write_inputs(directory: Path) -> None:
    (directory / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (directory / "replies.yaml").write_text("replies: [{reply: 'It is 1. ☃'}]\n")


def collect(*flags: str) -> int:
    """In the current directory: two tasks, two samples of each, half of them right."""
    write_inputs(Path())
    command = ["collect", "tasks.jsonl", "--model", "scripted:replies.yaml", "-k", "2", "--out", "run"]
    return main([*command, "--quiet", *flags])


def check_rollouts(texts: list[str]) -> None:
    """What the table holds is what the run holds."""
    found = [json.loads(text) for text in texts]
    assert [(r["task"]["key"], r["sample"], r["reward"]) for r in found] == [
        ("one", 0, 1.0),
        ("one", 1, 1.0),
        ("two", 0, 0.0),
        ("two", 1, 0.0),
    ]
    assert {r["messages"][-1]["content"] for r in found} == {"It is 1. ☃"}
