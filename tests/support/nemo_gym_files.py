"""Files as NeMo Gym's collector writes them, made by hand after its documentation: a run of three tasks, two rollouts each,
broken off half way."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.nemo_gym_servers import answer, call, message, prompt_of, result, row, sampled

Line = dict[str, Any]


def mark(line: Line, task: int, rollout: int, **more: Any) -> Line:
    return {**line, "_ng_task_index": task, "_ng_rollout_index": rollout, **more}


def inputs(tasks: int = 3, repeats: int = 2) -> list[Line]:
    return [mark(given(task), task, rollout) for task in range(tasks) for rollout in range(repeats)]


def given(task: int) -> Line:
    return row(f"{task} + {task}?", expected_answer=str(2 * task), verifier_metadata={"level": task})


def success(task: int, rollout: int, *output: Line, **more: Any) -> Line:
    sent = given(task)
    said = answer(sent, *(output or [str(2 * task)]))
    return mark({**said, "agent_ref": sent["agent_ref"], **more}, task, rollout)


def failure(task: int, rollout: int, kind: str, **more: Any) -> Line:
    return {**success(task, rollout), "reward": 0.0, "_ng_failure_class": kind, **more}


def tool_episode() -> list[Line]:
    """Two model calls with a tool between them, and the tokens of both."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "add them"}]}
    return [
        thought,
        {**call("c1", "add", {"a": 1, "b": 1}), **sampled([1, 2, 3], [4, 5])},
        result("c1", "2"),
        {**message("2"), **sampled([1, 2, 3, 4, 5, 6], [7])},
    ]


def half_finished() -> tuple[list[Line], list[Line]]:
    """Rollouts and failures: 0:0 after a failure, 0:1, 1:0 with tools, tokens and a verifier's fields; 1:1 has failed once,
    2:0 for good; 2:1 has never run."""
    rollouts = [
        success(1, 0, *tool_episode(), reward=0.5, accuracy=0.5, correct=True, judge={"why": ["close"]}),
        success(0, 1, mask_sample=True),
        success(0, 0, _ng_attempt_index=1),
    ]
    failures = [
        failure(0, 0, "transient", error="no browser"),
        failure(1, 1, "timeout_exceeded", error="too slow"),
        failure(2, 0, "skipped", _ng_failure_terminal=True),
    ]
    return rollouts, failures


def write(path: Path, lines: Iterable[Line]) -> Path:
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return path


def write_run(folder: Path, rollouts: list[Line], failures: list[Line] | None = None) -> Path:
    """Their files in a folder; the path of the rollouts."""
    write(folder / "gym_materialized_inputs.jsonl", inputs())
    if failures is not None:
        write(folder / "gym_failures.jsonl", failures)
    return write(folder / "gym.jsonl", rollouts)


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


__all__ = [
    "failure",
    "given",
    "half_finished",
    "inputs",
    "prompt_of",
    "read",
    "success",
    "write",
    "write_run",
]
