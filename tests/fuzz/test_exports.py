"""Exports of runs whose lines say anything: a file that its reader reads, or an error of ours and no file."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest
from hypothesis import given

import windrow
from tests.fuzz.mutations import fuzz, mutated_json, taken_or_refused
from tests.support.export_helpers import sampled
from tests.support.run_builders import folder_in_memory, write_lines, write_run
from windrow.records import Call, Message

CALL = Call(id="c", name="add", arguments='{"x": 1}')
MESSAGES = (
    Message(role="user", content=[{"type": "text", "text": "go"}], origin="task"),
    Message(role="assistant", content=None, origin="policy", tool_calls=(CALL,), reasoning="hm", turn=0),
    Message(role="tool", content="2", origin="tool", tool_call_id="c"),
)
LINES = [
    sampled("a", [([1], [2, 3]), ([1, 2, 3, 4], [5]), ([1, 9], [6])], reward=1.0, metrics={"steps": 2.0}),
    sampled("b", index=1, reward=0.5, messages=MESSAGES, tools=({"name": "add"},), state={"won": True}),
]


def rows_in(path: Path, to: str) -> int:
    if to == "parquet":
        return len(pyarrow.parquet.read_table(path).to_pylist())
    return len([json.loads(line) for line in path.read_bytes().splitlines()])


@pytest.mark.parametrize(
    ("to", "settings"),
    [
        ("sft", {}),
        ("sft", {"form": "openai"}),
        ("trl", {"advantages": "grpo"}),
        ("parquet", {"failed": True}),
        ("tinker", {"failed": True, "mask_parse_errors": True}),
        ("hud", {}),
    ],
    ids=["sft", "openai", "trl", "parquet", "tinker", "hud"],
)
@fuzz(60)
@given(line=mutated_json([msgspec.to_builtins(line) for line in LINES]))
def test_a_line_of_any_json_is_exported_or_left_out(line: bytes, to: str, settings: dict[str, Any]) -> None:
    with folder_in_memory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run, out = write_run(folder / "run"), folder / "out"
        (run / "rollouts.jsonl").write_bytes(line.replace(b"\n", b" ") + b"\n")
        write_lines(run / "rollouts.jsonl", LINES)
        report = taken_or_refused(lambda: windrow.export(run, to=to, out=out, **settings))
        assert out.exists() == (report is not None)
        assert report is None or rows_in(out, to) == report.rows
