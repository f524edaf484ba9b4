"""`--to parquet`: one row a rollout, typed, with token columns as lists, read back by the real pyarrow."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest

import windrow
from tests.support.export_helpers import said, sampled
from tests.support.run_builders import FAILED, write_run
from windrow.errors import StoreError
from windrow.exports import parquet
from windrow.exports.parquet import schema
from windrow.records import Call, Message, Usage


def written(run: Path, **options: Any) -> pyarrow.parquet.ParquetFile:
    windrow.export(run, to="parquet", out=f"{run}.parquet", overwrite=True, **options)
    return pyarrow.parquet.ParquetFile(f"{run}.parquet")


def rows(run: Path, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = written(run, **options).read().to_pylist()
    return found


def test_a_row_is_a_rollout_with_its_main_fields_typed(tmp_path: Path) -> None:
    call = Call(id="c", name="look", arguments='{"at": 1}')
    messages = (
        Message(role="user", content=[{"type": "text", "text": "see"}], origin="task"),
        Message(role="assistant", content=None, origin="policy", turn=0, tool_calls=(call,), reasoning="hm"),
        Message(role="tool", content="wall", origin="tool", tool_call_id="c"),
    )
    rollout = sampled(
        "a",
        reward=0.5,
        messages=messages,
        metrics={"steps": 2.0},
        state={"won": True},
        tools=({"name": "look"},),
    )
    file = written(write_run(tmp_path / "run", [rollout]))
    assert file.schema_arrow.equals(schema())
    [row] = file.read().to_pylist()
    taken = ("rollout_id", "attempt", "group", "sample", "task", "source", "split", "task_index", "model")
    assert [row[name] for name in taken] == [rollout.id, 1, rollout.group, 0, "a", "rows", None, 0, "m"]
    assert (row["status"], row["stop"], row["grade"], row["reward"]) == (
        "completed",
        "answered",
        "graded",
        0.5,
    )
    assert row["scores"] == [{"name": "judge", "value": 0.5, "weight": 1.0}]
    assert row["metrics"] == [{"name": "steps", "value": 2.0}]
    assert [json.loads(row[name]) for name in ("state", "tools", "task_data")] == [
        {"won": True},
        [{"name": "look"}],
        {"prompt": "a"},
    ]
    first, reply, result = row["messages"]
    assert (first["content"], json.loads(first["parts"])) == ("see", [{"type": "text", "text": "see"}])
    assert reply["tool_calls"] == [{"id": "c", "name": "look", "arguments": '{"at": 1}'}]
    assert (reply["content"], reply["reasoning"], reply["turn"]) == (None, "hm", 0)
    assert (result["role"], result["tool_call_id"], result["parts"]) == ("tool", "c", None)
    assert (row["capture"], row["turns"], row["unanswered_tool_calls"]) == ("tokens", 1, 0)


def test_token_columns_have_a_list_for_each_training_sequence(tmp_path: Path) -> None:
    forked = sampled("t", [([1], [2, 3]), ([1, 2, 3, 4], [5]), ([1, 9], [6])])
    lines = [forked, said("text", index=1), sampled("empty", (), index=2), sampled("u", index=3)]
    found = rows(write_run(tmp_path / "run", lines))
    assert [row["input_ids"] for row in found] == [
        [[1, 2, 3, 4, 5], [1, 9, 6]],
        None,
        [],
        [[1, 2, 3, 4]],
    ]
    assert [row["loss_mask"] for row in found] == [
        [[False, True, True, False, True], [False, False, True]],
        None,
        [],
        [[False, False, True, True]],
    ]
    assert [row["logprobs"] for row in found] == [
        [[0.0, -1.0, -1.125, 0.0, -2.0], [0.0, 0.0, -3.0]],
        None,
        [],
        [[0.0, 0.0, -1.0, -1.125]],
    ]


def test_rollouts_without_tokens_are_written_and_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [said("a"), said("b", index=1)])
    report = windrow.export(run, to="parquet", out=tmp_path / "out.parquet")
    assert (report.rows, list(report.notes.values())) == (2, [2])


def test_tokens_that_do_not_hold_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [sampled("a"), said("b", index=1, capture="tokens")])
    report = windrow.export(run, to="parquet", out=tmp_path / "out.parquet")
    assert (report.rows, sum(report.invalid.values())) == (1, 1)


def test_a_number_that_no_column_can_hold_is_left_out(tmp_path: Path) -> None:
    turn = msgspec.structs.replace(said("c").messages[1], turn=2**63)
    wrong = [
        said("b", index=1, usage=Usage(prompt_tokens=2**63)),
        said("c", index=2, messages=(said("c").messages[0], turn)),
    ]
    run = write_run(tmp_path / "run", [said("a"), *wrong])
    report = windrow.export(run, to="parquet", out=tmp_path / "out.parquet")
    assert (report.rows, report.invalid) == (1, {"rollouts with a number that no column can hold": 2})


@pytest.mark.parametrize("full", [False, True], ids=["stopped", "disk full"])
def test_an_export_that_is_stopped_says_nothing_but_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """pyarrow would complain of a writer whose file is closed."""
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 1)
    run = write_run(tmp_path / "run", [said(f"t{n}", index=n) for n in range(3)])

    def stop(read: int, exported: int) -> None:
        if full:
            monkeypatch.setattr(pyarrow.parquet.ParquetWriter, "write_table", no_room)
        elif read == 2:
            raise KeyboardInterrupt

    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError if full else KeyboardInterrupt):
        windrow.export(run, to="parquet", out=tmp_path / "out.parquet", on_progress=stop)
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert complaints == []


def test_a_failed_rollout_that_is_asked_for_says_why(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [said("a", status="failed", stop="error", error=FAILED)])
    [row] = rows(run, failed=True)
    assert (row["status"], row["error_owner"], row["error_kind"], row["reward"]) == (
        "failed",
        "infra",
        "http_503",
        None,
    )


@pytest.mark.parametrize(
    ("limit", "most", "sizes"), [("GROUP_ROWS", 3, [3, 3, 1]), ("GROUP_BYTES", 1, [1] * 7)]
)
def test_rows_are_written_in_groups_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(parquet, limit, most)
    file = written(write_run(tmp_path / "run", [sampled(f"t{n}", index=n) for n in range(7)]))
    groups = [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]
    assert groups == sizes
    assert [row["task"] for row in file.read().to_pylist()] == [f"t{n}" for n in range(7)]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    lines = [sampled("a", reward=1.0), sampled("b", index=1), said("c", index=2)]
    for name, order in (("one", lines), ("other", lines[::-1])):
        written(write_run(tmp_path / name, order))
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "other.parquet").read_bytes()


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    run = write_run(tmp_path / "run", [said("a")])
    with pytest.raises(windrow.WindrowError, match=r"pip install 'windrow-rl\[parquet\]'"):
        windrow.export(run, to="parquet", out=tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
