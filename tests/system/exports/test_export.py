"""Exports by the real command, killed, and read by the libraries that they are for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.command_process import Project, Running
from tests.support.export_helpers import sampled
from tests.support.model_server import chat_reply
from tests.support.run_builders import write_run

pytestmark = pytest.mark.slow

STUCK = """
import time
from windrow import Exporter


class Stuck(Exporter):
    def rows(self, example):
        if example.rollout.task.index == 1:
            open("stuck", "w").close()
            while True:  # not in one call of the system: a signal that comes just before one does not end it
                time.sleep(0.01)
        return [example.rollout.id]
"""
LOAD = """
import json, sys, datasets
datasets.disable_progress_bars()
found = datasets.load_dataset(sys.argv[1], data_files=sys.argv[2], split="train")
print(json.dumps([found[number] for number in range(len(found))]))
"""
PEAK = """
import resource, sys, windrow
windrow.export(sys.argv[1], to=sys.argv[2], out=sys.argv[3])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
TOOLS = '''
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def greet(name: str, loud: bool = False) -> str:
    """Greet someone."""
    return name
'''


def loaded(path: Path, kind: str = "json") -> list[dict[str, Any]]:
    """The rows as the real `datasets` gives them."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(path.parent / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, kind, str(path)],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def calling(body: dict[str, Any], n: int) -> Any:
    """Calls one of two tools, by the prompt, then says what it gave; every third prompt is answered at once."""
    asked = body["messages"][0]["content"]
    answers = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    if answers or asked.endswith("2"):
        return answers[-1] if answers else "no call"
    call = ("multiply", {"a": 6, "b": 7}) if asked.endswith("0") else ("greet", {"name": "Ada", "loud": True})
    whole = chat_reply(body, "", n)
    function = {"name": call[0], "arguments": json.dumps(call[1])}
    whole["choices"][0]["message"] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    whole["choices"][0]["finish_reason"] = "tool_calls"
    return whole


def test_the_real_datasets_reads_both_forms_of_chat_rows_as_they_were_written(
    project: Callable[..., Project],
) -> None:
    home = project(calling)
    home.module("mine", TOOLS)
    home.tasks({"prompt": f"task {n}", "answer": "42"} for n in range(3))
    tools = ["--env", "tool", "--tool", "mine:multiply", "--tool", "mine:greet"]
    assert home.collect(*tools).code == 0
    for form in ("hf", "openai"):
        done = home.windrow("export", "run", "--to", "sft", "--form", form, "-o", f"{form}.jsonl")
        assert (done.code, done.out) == (0, f"{form}.jsonl: 3 rows of 3 rollouts (sft)\n"), done.err
        path = home.path / f"{form}.jsonl"
        written = [json.loads(line) for line in path.read_bytes().splitlines()]
        for row, line in zip(loaded(path), written, strict=True):
            assert row["messages"] == line["messages"]
            assert row["tools"] == line["tools"] or form == "openai"


def test_the_real_datasets_reads_token_rows_and_parquet_as_lists(tmp_path: Path) -> None:
    forked = sampled("t", [([1], [2, 3]), ([1, 2, 3, 4], [5]), ([1, 9], [6])], reward=1.0)
    lines = [forked, sampled("t", sample=1, reward=0.0), sampled("u", index=1, reward=1.0)]
    run = write_run(tmp_path / "run", lines)
    windrow.export(run, to="trl", out=tmp_path / "rows.jsonl", advantages="grpo")
    written = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_bytes().splitlines()]
    assert len(written) == 4
    assert loaded(tmp_path / "rows.jsonl") == written
    windrow.export(run, to="parquet", out=tmp_path / "rows.parquet")
    found = loaded(tmp_path / "rows.parquet", "parquet")
    assert [row["input_ids"] for row in found] == [
        [[1, 2, 3, 4, 5], [1, 9, 6]],
        [[1, 2, 3, 4]],
        [[1, 2, 3, 4]],
    ]
    assert [row["reward"] for row in found] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("to", ["trl", "parquet"])
def test_memory_does_not_grow_with_the_tokens_of_a_run(tmp_path: Path, to: str) -> None:
    """Peaks of processes, because pyarrow's memory is not Python's: eight times the run, about the same peak."""
    length = 60_000
    peaks, sizes = [], []
    for name, count in (("small", 40), ("large", 320)):
        lines = (sampled(f"t{n}", [(range(length), range(9))], index=n) for n in range(count))
        run = write_run(tmp_path / name, lines)
        command = [sys.executable, "-c", PEAK, str(run), to, str(tmp_path / f"{name}.out")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
        sizes.append((run / "rollouts.jsonl").stat().st_size)
    assert peaks[1] - peaks[0] < (sizes[1] - sizes[0]) / 3


def stuck_in_the_middle(home: Project) -> tuple[Project, Running]:
    """An export of three rollouts that does not come past its second."""
    home.module("mine", STUCK)
    home.tasks({"prompt": f"task {n}"} for n in range(3))
    assert home.collect().code == 0
    running = home.start("export", "run", "--to", "mine:Stuck", "-o", "out.jsonl")
    running.until(lambda: (home.path / "stuck").exists(), "the second rollout")
    return home, running


def test_a_kill_in_the_middle_leaves_no_file_under_the_final_name(project: Callable[..., Project]) -> None:
    home, running = stuck_in_the_middle(project())
    running.signal(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    assert not (home.path / "out.jsonl").exists()
    done = home.windrow("export", "run", "--to", "sft", "-o", "out.jsonl")
    assert done.code == 0, done.err
    assert [len(json.loads(line)["messages"]) for line in (home.path / "out.jsonl").open()] == [2, 2, 2]
    assert sorted(path.name for path in home.path.iterdir() if "jsonl" in path.name) == [
        "out.jsonl",
        "tasks.jsonl",
    ]


def test_an_interrupted_export_takes_its_draft_away(project: Callable[..., Project]) -> None:
    home, running = stuck_in_the_middle(project())
    running.signal(signal.SIGINT)
    assert running.wait().code == 130
    assert [path.name for path in home.path.iterdir() if "out.jsonl" in path.name] == []
