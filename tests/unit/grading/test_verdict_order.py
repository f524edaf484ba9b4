"""Of several verdicts the one that was given last counts, whatever the clocks of their writers say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.fake_disks import QuickDisk
from tests.support.run_builders import collect, make_grading, make_rollout, rows, write_lines, write_run
from windrow import Task
from windrow.collecting.merge import merge
from windrow.records import MAX_LAMPORT, Grading
from windrow.store.reader import RunReader
from windrow.store.run_directory import RunDirectory
from windrow.store.sinks import GradingSink
from windrow.util.redaction import Redactor

ROLLOUT = make_rollout("one")
FAR_AHEAD = 4e9  # a time of the wall clock


def rewards(run: Path) -> list[float | None]:
    return [rollout.reward for rollout in windrow.load(run)]


def verdict(value: float | None, **changes: Any) -> Grading:
    return make_grading(ROLLOUT, value, **changes)


def run_with(path: Path, **gradings: list[Grading]) -> Path:
    """A run with the verdicts of several writers."""
    run = write_run(path, [ROLLOUT], gradings.pop("alone", ()))
    for writer, lines in gradings.items():
        write_lines(run / f"scores.{writer}.jsonl", lines)
    return run


def lamport_numbers(run: Path) -> list[int]:
    return [json.loads(line)["lamport"] for line in (run / "scores.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize("numbered", [True, False], ids=["of this version", "of an older version"])
async def test_a_rescore_counts_although_the_clock_of_a_rank_was_ahead(
    tmp_path: Path, numbered: bool
) -> None:
    value = 1.0

    def mood(task: Task, reply: str) -> float:
        return value

    mood.after_commit = True  # type: ignore[attr-defined]
    run = tmp_path / "run"
    await collect(run, tasks=rows(2), samples=1, scorers=(mood,))
    assert lamport_numbers(run) == [1, 2]
    lines = [json.loads(line) for line in (run / "scores.jsonl").read_bytes().splitlines()]
    for line in lines:
        line["graded_at"] = FAR_AHEAD
        if not numbered:
            del line["lamport"]
    (run / "scores.rank-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "scores.jsonl").write_bytes(b"")

    value = 0.25
    found = await windrow.rescore(run, scorers=[mood], where="reward=1")
    assert found.judged == 2
    assert rewards(run) == [0.25, 0.25]
    assert lamport_numbers(run) == ([3, 4] if numbered else [1, 2])
    merge([run], tmp_path / "merged", disk=QuickDisk())
    assert rewards(tmp_path / "merged") == [0.25, 0.25]


@pytest.mark.parametrize(
    ("gradings", "reward"),
    [
        ({"alone": [verdict(1.0, lamport=2), verdict(0.0, lamport=1)]}, 1.0),
        ({"a": [verdict(1.0, lamport=2)], "b": [verdict(0.0, lamport=1, graded_at=FAR_AHEAD)]}, 1.0),
        ({"a": [verdict(1.0, lamport=1)], "b": [verdict(0.0, lamport=1)]}, 0.0),
        ({"a": [verdict(1.0, lamport=1, graded_at=FAR_AHEAD)], "b": [verdict(0.0, lamport=1)]}, 0.0),
        ({"a": [verdict(1.0, lamport=1)], "b": [verdict(0.0, graded_at=FAR_AHEAD)]}, 1.0),
        ({"alone": [verdict(1.0, lamport=1), verdict(0.0)]}, 1.0),
        ({"alone": [verdict(1.0, graded_at=FAR_AHEAD), verdict(0.0)]}, 0.0),
        ({"a": [verdict(1.0, graded_at=FAR_AHEAD)], "b": [verdict(0.0)]}, 1.0),
        ({"a": [verdict(1.0, lamport=1)], "b": [verdict(None, lamport=2)]}, None),
    ],
    ids=[
        "the highest number, wherever it stands",
        "the highest number, whatever the time",
        "the same number: the last writer by name",
        "the same number: the last writer by name, whatever the time",
        "a number after none, of two writers",
        "a number after none, in one file",
        "no numbers, one file: the last line",
        "no numbers, two writers: the latest",
        "one that failed counts, too",
    ],
)
def test_which_verdict_counts_and_that_a_merge_does_not_change_it(
    tmp_path: Path, gradings: dict[str, list[Grading]], reward: float | None
) -> None:
    run = run_with(tmp_path / "run", **gradings)
    assert rewards(run) == [reward]
    merge([run], tmp_path / "merged", disk=QuickDisk())
    assert rewards(tmp_path / "merged") == [reward]


@pytest.mark.parametrize("failed_first", [True, False])
def test_of_two_runs_the_highest_number_counts_and_of_equals_one_that_did_not_fail(
    tmp_path: Path, failed_first: bool
) -> None:
    late = run_with(tmp_path / "late", alone=[verdict(1.0, lamport=1), verdict(0.5, lamport=7)])
    ahead = run_with(tmp_path / "ahead", alone=[verdict(0.0, lamport=6, graded_at=FAR_AHEAD)])
    failed = run_with(tmp_path / "failed", alone=[verdict(None, lamport=7, graded_at=FAR_AHEAD)])
    order = [failed, ahead, late] if failed_first else [late, ahead, failed]
    merge(order, tmp_path / "merged", disk=QuickDisk())
    assert rewards(tmp_path / "merged") == [0.5]


async def test_numbers_go_on_from_the_highest_of_any_writer_and_generation_and_never_beyond_what_is_read(
    tmp_path: Path,
) -> None:
    async def commit(run: Path) -> list[int]:
        directory = RunDirectory(run, disk=QuickDisk())
        with RunReader(run) as reader:
            sink = GradingSink(directory.open_scores(), Redactor(), reader.latest_lamport)
            await sink.commit([verdict(1.0), verdict(0.0)])
        directory.close()
        return lamport_numbers(run)[-2:]

    others = [verdict(1.0, lamport=40, generation=9)]
    assert await commit(run_with(tmp_path / "run", a=others)) == [41, 42]
    most = run_with(tmp_path / "most", a=[verdict(1.0, lamport=MAX_LAMPORT)])
    assert await commit(most) == [MAX_LAMPORT, MAX_LAMPORT]
