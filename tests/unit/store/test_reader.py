"""Reading a run: the union of its segments, bad lines left out and reported, final attempts, order."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.fake_disks import QuickDisk
from tests.support.run_builders import (
    FAILED,
    attempts,
    collect,
    make_grading,
    make_rollout,
    open_run,
    write_lines,
    write_run,
)
from windrow.errors import StoreError, UsageError
from windrow.records import Rollout, encode
from windrow.store.reader import RunReader, load
from windrow.store.run_directory import RunDirectory
from windrow.store.segments import segments

DAMAGE = {
    "not JSON": lambda line: b"%% an editor was here %%",
    "cut short": lambda line: line[: len(line) // 2],
    "empty": lambda line: b"",
    "not an object": lambda line: b"[1, 2]",
    "another object": lambda line: b'{"hello": "world"}',
    "a number for an id": lambda line: line.replace(b'"id":"', b'"id":7,"was":"', 1),
    "not UTF-8 in the id": lambda line: line.replace(b'"id":"', b'"id":"\xff', 1),
    "not UTF-8 in the prompt": lambda line: line.replace(b'"prompt":"', b'"prompt":"\xff\xfe', 1),
    "zeros": lambda line: b"\0" * len(line),
    "nested too deeply": lambda line: b"[" * 100_000,
}


def failed(name: str, **changes: Any) -> Rollout:
    return make_rollout(name, **{"status": "failed", "stop": "error", "error": FAILED, **changes})


def cancelled(name: str, reason: str, **changes: Any) -> Rollout:
    return make_rollout(name, status="cancelled", stop="cancelled", reason=reason, **changes)


def case_name(case: list[Rollout] | int) -> str:
    lines = case if isinstance(case, list) else []
    return " ".join(f"{line.attempt}-{line.reason or line.status}" for line in lines) or str(case)


# -- several segments


async def test_several_segments_are_read_as_one_log(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_rollout("a", index=0)])
    for number, writer in enumerate(("rank-0", "rank-1"), 1):
        directory = RunDirectory(run, writer=writer, disk=QuickDisk())
        await directory.open_rollouts().append(encode(make_rollout(f"{writer}", index=number)) + b"\n")
        directory.close()
    assert segments(run) == ["rollouts.jsonl", "rollouts.rank-0.jsonl", "rollouts.rank-1.jsonl"]
    assert [rollout.task.key for rollout in load(run)] == ["a", "rank-0", "rank-1"]


def test_a_slot_with_attempts_in_several_segments_has_one_final_attempt(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [failed("a"), make_rollout("b")])
    write_lines(run / "rollouts.w.jsonl", [make_rollout("a", attempt=2), failed("b", attempt=2)])
    finals = {rollout.task.key: rollout.attempt for rollout in load(run)}
    assert finals == {"a": 2, "b": 1}


def test_gradings_of_every_segment_count(tmp_path: Path) -> None:
    a, b = make_rollout("a", grade="pending"), make_rollout("b", index=1, grade="pending")
    run = write_run(tmp_path / "run", [a, b], [make_grading(a, 0.25)])
    write_lines(run / "scores.w.jsonl", [make_grading(b, 0.75)])
    assert [rollout.reward for rollout in load(run)] == [0.25, 0.75]


async def test_resuming_counts_what_other_writers_committed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await collect(run)
    lines = (run / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    (run / "rollouts.jsonl").write_bytes(b"".join(lines[:1]))
    (run / "rollouts.a.jsonl").write_bytes(b"".join(lines[1:3]))
    (run / "rollouts.b.jsonl").write_bytes(b"".join(lines[3:5]))
    summary, committed = await collect(run)
    assert summary.complete
    assert len(committed) == 1


# -- the final attempt


@pytest.mark.parametrize(
    ("lines", "final"),
    [
        ([failed("a")], 1),
        ([failed("a"), failed("a", attempt=2)], 2),
        ([failed("a"), make_rollout("a", attempt=2)], 2),
        ([make_rollout("a"), failed("a", attempt=2)], 1),
        ([make_rollout("a"), make_rollout("a", attempt=2)], 2),
        ([make_rollout("a"), make_rollout("a", attempt=2), failed("a", attempt=3)], 2),
        ([make_rollout("a", status="truncated", stop="length"), failed("a", attempt=2)], 1),
        ([failed("a", attempt=2), make_rollout("a", attempt=1)], 1),
        ([failed("a", attempt=2), failed("a", attempt=1)], 2),
        ([make_rollout("a"), cancelled("a", "interrupted", attempt=2)], 1),
        ([make_rollout("a"), cancelled("a", "surplus", attempt=2)], 1),
        ([cancelled("a", "surplus", attempt=1), make_rollout("a", attempt=2)], 2),
        ([failed("a"), cancelled("a", "stale", attempt=2)], 2),
    ],
    ids=case_name,
)
def test_the_final_attempt_is_the_highest_done_one_else_the_highest(
    tmp_path: Path, lines: list[Rollout], final: int
) -> None:
    run = write_run(tmp_path / "run", lines)
    assert [rollout.attempt for rollout in load(run)] == [final]


ENDS = st.sampled_from(["completed", "truncated", "failed", "interrupted", "surplus"])


@settings(max_examples=max(30, settings().max_examples // 3))
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 4), ENDS, st.sampled_from(["", ".w", ".z"])),
        unique_by=lambda line: line[:2],
        max_size=12,
    )
)
def test_final_attempts_are_the_same_in_whatever_order_and_segment_the_lines_stand(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, int, str, str]]
) -> None:
    run = write_run(tmp_path_factory.mktemp("runs") / "run")
    expected: dict[int, tuple[bool, int]] = {}
    for task, attempt, end, segment in lines:
        if end in ("completed", "truncated"):
            line = make_rollout(str(task), index=task, attempt=attempt, status=end)
        elif end == "failed":
            line = failed(str(task), index=task, attempt=attempt)
        else:
            line = cancelled(str(task), end, index=task, attempt=attempt)
        write_lines(run / f"rollouts{segment}.jsonl", [line])
        rank = (end in ("completed", "truncated"), attempt)
        expected[task] = max(rank, expected.get(task, (False, 0)))
    found = [(rollout.task.index, rollout.attempt) for rollout in load(run)]
    assert found == [(task, expected[task][1]) for task in sorted(expected)]
    everything = [(rollout.task.index, rollout.attempt) for rollout in load(run, attempts="all")]
    assert everything == sorted((task, attempt) for task, attempt, *_ in lines)


def in_another_form(line: bytes) -> bytes:
    """The same record as another program might have written it."""
    return b'{ "attempt": %d, ' % json.loads(line)["attempt"] + line[1:]


@settings(max_examples=max(30, settings().max_examples // 3))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(1, 3), ENDS, st.sampled_from(["", ".w", ".z"]), st.booleans()
        ),
        max_size=12,
    )
)
@example([(0, 1, "completed", "", True)] * 2)
@example([(0, 1, "completed", "", False), (0, 1, "failed", ".w", True)])
def test_a_slot_has_one_final_attempt_however_often_and_in_whatever_form_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, int, str, str, bool]]
) -> None:
    run = write_run(tmp_path_factory.mktemp("runs") / "run")
    best: dict[int, tuple[bool, int]] = {}
    for task, attempt, end, segment, reformed in lines:
        ended = end in ("completed", "truncated")
        line = encode(
            make_rollout(str(task), index=task, attempt=attempt, status=end)
            if ended
            else failed(str(task), index=task, attempt=attempt)
        )
        with (run / f"rollouts{segment}.jsonl").open("ab") as file:
            file.write((in_another_form(line) if reformed else line) + b"\n")
        best[task] = max((ended, attempt), best.get(task, (False, 0)))
    with RunReader(run) as reader:
        found = [
            (head.task.index, head.status in ("completed", "truncated"), head.attempt)
            for _, head in reader.finals()
        ]
        assert reader.attempts == len(lines)
        assert not reader.bad_lines
    assert sorted(found) == [(task, *best[task]) for task in sorted(best)]


def test_a_slot_is_given_once_while_the_run_grows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [failed("a"), make_rollout("b", index=1)])
    with RunReader(run) as reader:
        finals = reader.finals()
        first = next(finals)
        write_lines(run / "rollouts.jsonl", [make_rollout("a", attempt=2), make_rollout("c", index=2)])
        ids = [head.id for _, head in (first, *finals)]
    assert len(ids) == len(set(ids))


def test_a_line_that_is_finished_while_the_run_is_read_belongs_to_the_next_reading(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [failed("a"), make_rollout("b", index=1)])
    line = encode(make_rollout("a", attempt=2)) + b"\n"
    with RunReader(run) as reader, (run / "rollouts.jsonl").open("ab", buffering=0) as file:
        file.write(line[:50])
        finals = reader.finals()
        first = next(finals)
        file.write(line[50:])
        assert [head.attempt for _, head in (first, *finals)] == [1, 1]
    assert [rollout.attempt for rollout in load(run)] == [2, 1]


# -- order


def test_load_orders_by_task_then_sample_then_attempt(tmp_path: Path) -> None:
    lines = [
        make_rollout("late", index=10, sample=0),
        make_rollout("early", index=2, sample=1),
        make_rollout("early", index=2, sample=0, attempt=2),
        failed("early", index=2, sample=0),
        make_rollout("early", index=2, sample=10),
    ]
    run = write_run(tmp_path / "run", lines)
    places = [(r.task.index, r.sample, r.attempt) for r in load(run, attempts="all")]
    assert places == [(2, 0, 1), (2, 0, 2), (2, 1, 1), (2, 10, 1), (10, 0, 1)]
    finals = [(r.task.index, r.sample, r.attempt) for r in load(run)]
    assert finals == [(2, 0, 2), (2, 1, 1), (2, 10, 1), (10, 0, 1)]


async def test_load_gives_the_same_order_whatever_order_the_rollouts_ended_in(tmp_path: Path) -> None:
    await collect(tmp_path / "one", concurrency=1)
    await collect(tmp_path / "many", concurrency=8, shuffle=7)
    assert attempts(tmp_path / "one") == attempts(tmp_path / "many")


def test_load_reads_one_rollout_at_a_time(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_rollout(str(n), index=n) for n in range(3)])
    rollouts = load(run)
    assert next(rollouts).task.index == 0
    assert not isinstance(rollouts, list)
    assert [rollout.task.index for rollout in rollouts] == [1, 2]


def test_load_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with pytest.raises(UsageError, match="expected 'final' or 'all'"):
        load(run, attempts="best")
    with pytest.raises(UsageError, match="is not a run directory"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"is not a run: it has no run\.json"):
        load(tmp_path / "empty")


def test_fields_that_a_later_windrow_added_are_ignored(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    line = encode(make_rollout("a")).replace(b'{"v":1,', b'{"v":1,"colour":{"hue":[1,2]},', 1)
    (run / "rollouts.jsonl").write_bytes(line + b"\n")
    assert list(load(run)) == [make_rollout("a")]


# -- bad lines


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_bad_middle_line_is_left_out_and_reported_and_the_rest_is_read(tmp_path: Path, damage: Any) -> None:
    run = write_run(tmp_path / "run", [make_rollout(str(n), index=n) for n in range(4)])
    lines = (run / "rollouts.jsonl").read_bytes().splitlines()
    lines[1] = damage(lines[1])
    (run / "rollouts.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    before = (run / "rollouts.jsonl").read_bytes()
    with pytest.warns(UserWarning, match=r"rollouts\.jsonl:2 is left out") as reported:
        assert [rollout.task.index for rollout in load(run)] == [0, 2, 3]
    assert len(reported) == 1
    assert (run / "rollouts.jsonl").read_bytes() == before, "reading changes nothing"
    with RunReader(run) as reader:
        for _ in range(2):
            assert len(list(reader.finals())) == 3
        assert [(bad.segment, bad.number) for bad in reader.bad_lines] == [("rollouts.jsonl", 2)]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
async def test_a_run_with_a_bad_middle_line_goes_on_and_runs_that_slot_again(
    tmp_path: Path, damage: Any
) -> None:
    run = tmp_path / "run"
    await collect(run, scorers=("exact",))
    whole = attempts(run)
    lines = (run / "rollouts.jsonl").read_bytes().splitlines()
    lines[2] = damage(lines[2])
    (run / "rollouts.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    collection = open_run(run, scorers=("exact",))
    warnings_given, pending = collection.warnings, collection.ledger.pending_count
    collection.close()
    assert pending == 1
    assert len(warnings_given) == 1
    assert f"{run / 'rollouts.jsonl'}:3" in warnings_given[0]
    summary, committed = await collect(run, scorers=("exact",))
    assert (summary.complete, len(committed)) == (True, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert attempts(run) == whole
    assert (run / "rollouts.jsonl").read_bytes().splitlines()[:6] == lines, "nothing is rewritten"


def test_a_bad_line_of_the_scores_is_left_out_and_reported(tmp_path: Path) -> None:
    a, b = make_rollout("a", grade="pending"), make_rollout("b", index=1, grade="pending")
    run = write_run(tmp_path / "run", [a, b])
    (run / "scores.jsonl").write_bytes(b"{oops\n" + encode(make_grading(b, 1.0)) + b"\n")
    with pytest.warns(UserWarning, match=r"scores\.jsonl:1 is left out"):
        assert [(rollout.grade, rollout.reward) for rollout in load(run)] == [
            ("pending", None),
            ("graded", 1.0),
        ]


def test_a_line_that_only_the_whole_decode_refuses_is_left_out_too(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_rollout("a"), make_rollout("b", index=1)])
    path = run / "rollouts.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"capture":"text"', b'"capture":"video"', 1))
    with pytest.warns(UserWarning, match=r"rollouts\.jsonl: the line at byte 0 is not a rollout"):
        assert [rollout.task.key for rollout in load(run)] == ["b"]
    with RunReader(run) as reader, pytest.raises(StoreError, match="line at byte 0"):
        reader.read(next(reader.heads())[0])


def test_a_tail_that_is_being_written_is_not_read_and_not_bad(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_rollout("a")])
    with (run / "rollouts.jsonl").open("ab") as file:
        file.write(encode(make_rollout("b"))[:-10])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [rollout.task.key for rollout in load(run)] == ["a"]
    assert not (run / "torn").exists()
