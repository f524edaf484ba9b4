"""tasks.jsonl: each task once, only ever appended to, read back by offset; large rows stand nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_disks import FullDisk
from tests.support.run_builders import attempts, collect, contents, open_run, rows
from windrow.errors import StoreError
from windrow.store.reader import load
from windrow.store.task_file import WRITE_BYTES
from windrow.tasks.plan import MAX_DATA_BYTES


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "tasks.jsonl").read_bytes().splitlines()]


def tasks_of(run: Path, **options: Any) -> list[dict[str, Any]]:
    """The rows of the tasks that a call would run, in its order."""
    collection = open_run(run, **options)
    found = [collection.plan.tasks.task(position).data for position in range(len(collection.plan.tasks))]
    collection.close()
    return found  # type: ignore[return-value]


def test_each_task_is_written_once_as_it_was_read(tmp_path: Path) -> None:
    given = [
        {"prompt": "a", "id": "x", "tags": ["t"], "nested": {"é": [1.5, None]}},
        {"prompt": "b", "id": 2},
    ]
    assert tasks_of(tmp_path / "run", tasks=given, scorers=(), split="test") == given
    found = lines(tmp_path / "run")
    assert [line["data"] for line in found] == given
    assert [(line["key"], line["index"], line["tags"]) for line in found] == [("x", 0, ["t"]), ("2", 1, [])]
    assert {(line["source"], line["split"], line["occurrence"]) for line in found} == {("rows", "test", 0)}


def test_the_same_tasks_again_add_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    open_run(run).close()
    before = (run / "tasks.jsonl").read_bytes()
    for options in ({}, {"limit": 1}, {"shuffle": 3}, {"samples": 9}):
        open_run(run, **options).close()
        assert (run / "tasks.jsonl").read_bytes() == before


def test_more_tasks_are_appended(tmp_path: Path) -> None:
    run = tmp_path / "run"
    open_run(run, tasks=rows(10), limit=2).close()
    before = (run / "tasks.jsonl").read_bytes()
    assert tasks_of(run, tasks=rows(10), limit=5) == rows(10)[:5]
    after = (run / "tasks.jsonl").read_bytes()
    assert after.startswith(before)
    assert [line["data"] for line in lines(run)] == rows(10)[:5]


def test_a_shuffled_selection_is_read_in_its_own_order(tmp_path: Path) -> None:
    run = tmp_path / "run"
    plain = tasks_of(run, tasks=rows(20))
    shuffled = tasks_of(run, tasks=rows(20), shuffle=1)
    assert shuffled != plain
    assert sorted(row["prompt"] for row in shuffled) == sorted(row["prompt"] for row in plain)
    assert tasks_of(run, tasks=rows(20), shuffle=1, limit=4) == shuffled[:4]


async def test_rows_that_are_alike_are_tasks_of_their_own(tmp_path: Path) -> None:
    run = tmp_path / "run"
    twice = [*rows(1), *rows(2)]
    await collect(run, tasks=twice)
    assert [(line["index"], line["occurrence"]) for line in lines(run)] == [(0, 0), (1, 1), (2, 0)]
    assert len({rollout.id for rollout in load(run)}) == len(list(load(run))) == 6
    summary, _ = await collect(run, tasks=twice)
    assert summary.attempts == 0


def test_many_tasks_are_written_in_pieces_and_read_back(tmp_path: Path) -> None:
    big = [{"prompt": f"{number} " + "x" * (WRITE_BYTES // 3)} for number in range(8)]
    assert tasks_of(tmp_path / "run", tasks=big, scorers=()) == big
    assert tasks_of(tmp_path / "run", tasks=big, scorers=(), shuffle=1, limit=3)[0] in big


def test_a_full_disk_is_a_plain_error_and_the_next_call_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    open_run(run, limit=1).close()
    room = (run / "run.json").stat().st_size + 2000  # for that, and for some of the tasks
    with pytest.raises(StoreError, match=r"cannot write .*tasks\.jsonl"):
        open_run(run, tasks=rows(100), disk=FullDisk(room))
    assert [line["data"] for line in lines(run)] == rows(1)
    assert tasks_of(run, tasks=rows(100)) == rows(100)


# -- damage


async def test_a_torn_last_task_is_set_aside_and_written_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await collect(run)
    before = contents(run)
    whole = (run / "tasks.jsonl").read_bytes()
    (run / "tasks.jsonl").write_bytes(whole[:-5])
    collection = open_run(run)
    assert any("torn" in warning for warning in collection.warnings)
    collection.close()
    assert (run / "tasks.jsonl").read_bytes() == whole
    torn = run / "torn" / "tasks.jsonl.1"
    assert whole[:-5].endswith(b"\n" + torn.read_bytes())
    assert contents(run) == before


@pytest.mark.parametrize("damage", [b"%%", b"", b"{}", b'{"digest":"00","occurrence":0}', b"\xff\xfe"])
async def test_a_bad_middle_line_is_left_out_reported_and_its_task_written_again(
    tmp_path: Path, damage: bytes
) -> None:
    run = tmp_path / "run"
    await collect(run)
    before = attempts(run)
    found = (run / "tasks.jsonl").read_bytes().splitlines()
    (run / "tasks.jsonl").write_bytes(b"\n".join([found[0], damage, found[2]]) + b"\n")
    collection = open_run(run)
    warned = [warning for warning in collection.warnings if f"{run / 'tasks.jsonl'}:2" in warning]
    collection.close()
    assert len(warned) == 1
    assert (run / "tasks.jsonl").read_bytes() == b"\n".join([found[0], damage, found[2], found[1]]) + b"\n"
    summary, _ = await collect(run)
    assert (summary.complete, summary.attempts) == (True, 0)
    assert attempts(run) == before


def test_invalid_text_inside_a_task_does_not_reach_the_policy(tmp_path: Path) -> None:
    run = tmp_path / "run"
    open_run(run).close()
    path = run / "tasks.jsonl"
    path.write_bytes(path.read_bytes().replace(b"say 1", b"say \xff", 1))
    assert tasks_of(run) == rows(3)


# -- large rows


def row_of_size(size: int, name: str = "big") -> dict[str, Any]:
    """A row whose JSON is `size` bytes long."""
    row = {"prompt": name, "answer": name, "note": ""}
    return {**row, "note": "n" * (size - len(json.dumps(row, separators=(",", ":"))))}


@pytest.mark.parametrize("size", [MAX_DATA_BYTES - 1, MAX_DATA_BYTES])
async def test_a_row_up_to_the_limit_stands_in_the_rollout(tmp_path: Path, size: int) -> None:
    await collect(tmp_path / "run", tasks=[row_of_size(size)])
    line = json.loads((tmp_path / "run" / "rollouts.jsonl").read_bytes().splitlines()[0])
    assert line["task"]["data"] == row_of_size(size)


async def test_a_larger_row_stands_only_in_the_tasks_and_is_read_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = [row_of_size(MAX_DATA_BYTES + 1, "one"), row_of_size(100_000, "two"), *rows(1)]
    summary, committed = await collect(run, tasks=given, scorers=("exact",), samples=3)
    assert summary.complete
    for line in (run / "rollouts.jsonl").read_bytes().splitlines():
        rollout = json.loads(line)
        assert (rollout["task"]["data"] is None) == (rollout["task"]["index"] < 2)
        assert len(line) < MAX_DATA_BYTES * 2 or rollout["task"]["data"] is None
    assert [rollout.task.data for rollout in load(run)] == [row for row in given for _ in range(3)]
    assert {rollout.reward for rollout in load(run)} == {1.0}
    assert len(committed) == 9


async def test_a_large_row_can_be_graded_and_selected_later(tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = [row_of_size(20_000, "say 1"), row_of_size(20_000, "say 2")]
    given = [{**row, "answer": row["prompt"].removeprefix("say ")} for row in given]
    await collect(run, tasks=given, scorers=("contains",))
    summary, _ = await collect(run, tasks=given, scorers=("exact",), regrade=True)
    assert (summary.complete, summary.attempts) == (True, 0)
    assert [rollout.reward for rollout in load(run)] == [1.0] * 4
    summary, _ = await collect(run, tasks=given, scorers=("exact",), redo="task.data.answer=2")
    assert summary.attempts == 2


async def test_without_the_tasks_the_rollouts_are_still_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await collect(run, tasks=[row_of_size(20_000)])
    (run / "tasks.jsonl").unlink()
    assert [rollout.task.data for rollout in load(run)] == [None, None]
