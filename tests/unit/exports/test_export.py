"""What every export promises: which rollouts, in which order, one whole file, and what is said of the rest."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import tracemalloc
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.export_helpers import exported, said
from tests.support.run_builders import FAILED, make_grading, write_run
from windrow import Example, Exporter
from windrow.cli.main import main
from windrow.errors import ExportError, StoreError, UsageError
from windrow.exports.base import Invalid
from windrow.util import atomic_files
from windrow.util.atomic_files import draft_of

BROKEN: dict[str, Any] = {"status": "failed", "stop": "error", "error": FAILED}
CANCELLED: dict[str, Any] = {"status": "cancelled", "stop": "cancelled", "reason": "interrupted"}


class Names(Exporter):
    """Writes the names of tasks; the one called `bad` contradicts itself, `odd` is not foreseen."""

    def __init__(self, *, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix

    def rows(self, example: Example) -> list[str]:
        if example.rollout.task.key == "bad":
            raise Invalid("bad")
        if example.rollout.task.key == "odd":
            raise KeyError("colour")
        return [self._prefix + example.rollout.task.key]


class Rewards(Exporter):
    needs_groups = True

    def rows(self, example: Example) -> list[Any]:
        return [[example.rollout.sample, *example.rewards]]


OWN = f"{__name__}:Names"


def samples(*rewards: float | None, name: str = "t", index: int = 0) -> list[windrow.Rollout]:
    return [
        said(name, sample=number, reward=reward, index=index, reply=f"{name}{number}")
        for number, reward in enumerate(rewards)
    ]


def replies(rows: list[dict[str, Any]]) -> list[str]:
    return [row["messages"][-1]["content"] for row in rows]


# -- which rollouts, in which order


def test_final_attempts_are_exported_in_the_order_of_load(tmp_path: Path) -> None:
    lines = [*samples(None, None, name="b", index=1), *samples(None, None, name="a")]
    again = said("a", attempt=2, reply="again")
    run = write_run(tmp_path / "run", [*lines, again])
    assert replies(exported(run, "sft")) == ["again", "a1", "b0", "b1"]


def test_failed_and_cancelled_ones_are_left_out_and_counted_unless_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [said("a"), said("b", index=1, **BROKEN), said("c", index=2, **CANCELLED)]
    run = write_run(tmp_path / "run", lines)
    assert main(["export", str(run), "--to", "sft", "-o", str(tmp_path / "a.jsonl")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path / 'a.jsonl'}: 1 rows of 1 rollouts (sft)",
        "left out: 1 failed, 1 cancelled",
    ]
    assert replies(exported(run, "sft", failed=True)) == ["a!", "b!", "c!"]


def test_conditions_select_and_what_they_leave_out_is_counted_by_why(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [*samples(0.0, 0.5, 1.0, None), said("u", index=1, reward=1.0)])
    out = tmp_path / "out.jsonl"
    report = windrow.export(run, to="sft", out=out, where="task.key=t", min_reward=0.5)
    assert (report.rollouts, report.exported, report.rows) == (5, 2, 2)
    assert report.left_out == {"reward below 0.5": 1, "not graded": 1, "not task.key=t": 1}
    assert replies(exported(run, "sft", where="task.key=t", min_reward=0.5)) == ["t1", "t2"]


def test_the_best_of_a_group_is_the_first_with_its_highest_reward(tmp_path: Path) -> None:
    lines = [*samples(-1.0, 0.5, 0.5, None), *samples(-2.0, -3.0, name="u", index=1)]
    run = write_run(tmp_path / "run", lines)
    report = windrow.export(run, to="sft", out=tmp_path / "out.jsonl", best_of_group=True)
    assert report.left_out == {"not graded": 1, "not the best of their group": 3}
    assert replies(exported(run, "sft", best_of_group=True)) == ["t1", "u0"]


def test_scores_that_were_given_after_the_commit_count(tmp_path: Path) -> None:
    lines = [said("a", grade="pending"), said("b", index=1, grade="pending")]
    gradings = [make_grading(lines[0], 0.0), make_grading(lines[1], 1.0)]
    run = write_run(tmp_path / "run", lines, gradings)
    assert replies(exported(run, "sft", min_reward=0.5)) == ["b!"]


def test_an_exporter_that_needs_groups_is_given_all_rewards_of_each_also_of_those_left_out(
    tmp_path: Path,
) -> None:
    lines = [*samples(0.0, 1.0, None), *samples(0.25, name="u", index=1)]
    run = write_run(tmp_path / "run", lines)
    rows = exported(run, f"{__name__}:Rewards", where="reward>0")
    assert rows == [[1, 0.0, 1.0], [0, 0.25]]


def test_groups_of_one_task_are_kept_apart(tmp_path: Path) -> None:
    """A merged run may hold a task under two behaviours."""
    lines = [said("t", sample=0, reward=0.0), said("t", sample=1, reward=1.0, group="other")]
    run = write_run(tmp_path / "run", lines)
    assert exported(run, f"{__name__}:Rewards") == [[0, 0.0], [1, 1.0]]


# -- one whole file


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    lines = [*samples(0.0, 1.0), *samples(1.0, 0.0, name="u", index=1)]
    one, other = write_run(tmp_path / "one", lines), write_run(tmp_path / "other", lines[::-1])
    for run in (one, other):
        windrow.export(run, to="sft", out=f"{run}.jsonl")
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "other.jsonl").read_bytes()


def test_a_file_that_is_there_is_refused_unless_it_is_to_be_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = write_run(tmp_path / "run", [said("a")]), tmp_path / "out.jsonl"
    out.write_text("mine")
    command = ["export", str(run), "--to", "sft", "-o", str(out)]
    assert main(command) == 2
    assert f"{out} exists; --overwrite replaces it" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main([*command, "--overwrite"]) == 0
    assert json.loads(out.read_text())["messages"][-1]["content"] == "a!"


@pytest.mark.parametrize(
    ("out", "problem"),
    [(".", "is a directory; give the path of a file"), ("no/where.jsonl", "cannot be written in it")],
)
def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path, out: str, problem: str) -> None:
    run = write_run(tmp_path / "run", [said("a")])
    with pytest.raises(UsageError, match=problem):
        windrow.export(run, to="sft", out=tmp_path / out)


class Stopped(Exception):
    pass


def test_an_export_that_is_stopped_leaves_what_was_there(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", [said("a"), said("b", index=1)]), tmp_path / "out.jsonl"
    out.write_text("mine")

    def stop(read: int, exported: int) -> None:
        assert draft_of(out).exists()
        assert out.read_text() == "mine"
        if read == 2:
            raise Stopped

    with pytest.raises(Stopped):
        windrow.export(run, to="sft", out=out, overwrite=True, on_progress=stop)
    assert out.read_text() == "mine"
    assert not draft_of(out).exists()


def test_what_came_to_be_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", [said("a")]), tmp_path / "out.jsonl"
    with pytest.raises(UsageError, match="exists; --overwrite replaces it"):
        windrow.export(run, to="sft", out=out, on_progress=lambda *_: out.write_text("theirs"))  # type: ignore[arg-type,func-returns-value]
    assert out.read_text() == "theirs"


def test_a_draft_that_a_kill_left_is_taken_over(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", [said("a")]), tmp_path / "out.jsonl"
    draft_of(out).write_text("half of a line, and much more than what is written now" * 100)
    windrow.export(run, to="sft", out=out)
    assert len(out.read_bytes().splitlines()) == 1
    assert not draft_of(out).exists()


def test_two_exports_to_one_path_are_not_mixed(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", [said("a")]), tmp_path / "out.jsonl"
    with draft_of(out).open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another export is writing"):
            windrow.export(run, to="sft", out=out)
        assert draft_of(out).exists(), "it is the other one's"


def test_a_draft_that_was_renamed_before_it_was_locked_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = write_run(tmp_path / "run", [said("a")]), tmp_path / "out.jsonl"
    lock = atomic_files.fcntl.flock

    def late(descriptor: int, how: int) -> None:
        os.pwrite(descriptor, b"theirs", 0)
        draft_of(out).rename(out)
        lock(descriptor, how)

    monkeypatch.setattr(atomic_files.fcntl, "flock", late)
    with pytest.raises(UsageError, match="another export is writing"):
        windrow.export(run, to="sft", out=out)
    assert out.read_bytes() == b"theirs"


def test_a_disk_that_does_not_take_it_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    run, out = write_run(tmp_path / "run", [said("a")]), tmp_path / "out.jsonl"
    monkeypatch.setattr(atomic_files.os, "fsync", full)
    with pytest.raises(StoreError, match=r"cannot write .*out\.jsonl: No space left on device"):
        windrow.export(run, to="sft", out=out)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_nothing_left_is_an_error_that_says_why_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = write_run(tmp_path / "run", [said("a", **BROKEN)]), tmp_path / "out.jsonl"
    out.write_text("mine")
    assert main(["export", str(run), "--to", "sft", "-o", str(out), "--overwrite"]) == 1
    assert f"nothing of {run} is left to export (1 failed), so {out} was not written" in (
        capsys.readouterr().err
    )
    assert out.read_text() == "mine"
    with pytest.raises(ExportError, match="has no rollouts"):
        windrow.export(write_run(tmp_path / "empty"), to="sft", out=tmp_path / "none.jsonl")


# -- memory


@pytest.mark.parametrize("options", [{}, {"best_of_group": True}], ids=["each", "groups"])
def test_memory_does_not_grow_with_the_run(tmp_path: Path, options: dict[str, Any]) -> None:
    size, count = 50_000, 300
    lines = (said("x" * 10 + str(n), index=n, reward=1.0, reply="y" * size) for n in range(count))
    run = write_run(tmp_path / "run", lines)
    gc.collect()
    tracemalloc.start()
    try:
        report = windrow.export(run, to="sft", out=tmp_path / "out.jsonl", **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.rows == count
    assert peak < size * count / 3


# -- exporters of one's own


def test_an_exporter_of_ones_own_is_named_by_its_module_and_takes_settings(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", [said("a"), said("b", index=1)]), tmp_path / "out.jsonl"
    assert main(["export", str(run), "--to", OWN, "-o", str(out), "--set", "prefix=n-"]) == 0
    assert out.read_text() == '"n-a"\n"n-b"\n'


def test_an_exporter_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = EntryPoints([EntryPoint("names", OWN, "windrow.exporters")])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: plugins.select(group=group))
    run = write_run(tmp_path / "run", [said("a")])
    assert exported(run, "names") == ["a"]


def test_a_rollout_that_contradicts_itself_is_left_out_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [said("a"), said("bad", index=1), said("bad", index=1, sample=1)]
    run, out = write_run(tmp_path / "run", lines), tmp_path / "out.jsonl"
    assert main(["export", str(run), "--to", OWN, "-o", str(out)]) == 1
    assert f"invalid, left out: 2 bad (the first is {lines[1].id})" in capsys.readouterr().out
    assert out.read_text() == '"a"\n'


def test_an_exporter_that_raises_is_named_with_the_rollout_and_no_file_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = said("odd", index=1)
    run = write_run(tmp_path / "run", [said("a"), odd])
    assert main(["export", str(run), "--to", OWN, "-o", str(tmp_path / "out.jsonl")]) == 1
    assert f"Names raised KeyError: 'colour', given the rollout {odd.id}" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--to", "stf"], "unknown exporter 'stf'; did you mean 'sft'?"),
        (["--to", "builtins:dict"], "is not a class derived from windrow.Exporter"),
        (["--to", "sft", "--set", "colour=red"], "exporter 'sft': got an unexpected keyword argument"),
        (["--to", "sft", "--set", "colour"], "expected KEY=VALUE"),
        (["--to", "sft", "--set", "form=jsonl"], "form 'jsonl': expected one of hf, openai"),
        (["--to", "sft", "--where", "colour=red"], "a rollout has no field 'colour'"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_wrong_usage_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    run = write_run(tmp_path / "run", [said("a")])
    assert main(["export", str(run), "-o", str(tmp_path / "out"), *arguments]) == 2
    assert problem in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_long_export_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("windrow.cli.export.PROGRESS_S", 0.0)
    run = write_run(tmp_path / "run", [said("a", **BROKEN), said("b", index=1), said("c", index=2)])
    assert main(["export", str(run), "--to", "sft", "-o", str(tmp_path / "out.jsonl")]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "1 rollouts read, 0 exported",
        "2 rollouts read, 1 exported",
        "3 rollouts read, 2 exported",
    ]
