"""A merge that is killed at any file operation leaves the old run or the new one to every reader, and the next writer ends it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_disks import QuickDisk
from tests.support.kill_points import killed_everywhere
from tests.support.run_builders import (
    folder_in_memory,
    make_grading,
    make_rollout,
    write_lines,
    write_run,
)
from windrow import load
from windrow.cli.main import main
from windrow.collecting.merge import merge
from windrow.records import Timing, encode
from windrow.store.blobs import path_of
from windrow.store.manifest import MANIFEST, is_run
from windrow.store.run_directory import RunDirectory
from windrow.util.blobs import name_of_blob
from windrow.util.directory_swap import READY

ONE, TWO, THREE = (make_rollout(name) for name in ("one", "two", "three"))
READERS = ("stats {run} --json", "show {run} --json", "verify {run} --json", "profile {run} --json")


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


def runs(root: Path, *, exists: bool) -> Path:
    """What is merged: `part` into `out`, where one run has what the other lacks, and an attempt in another version."""
    late = make_rollout("two", timing=Timing(started_at=1.0))
    part = write_run(root / "part", [ONE, late, THREE], [make_grading(ONE, 1.0)])
    blob = path_of(part / "blobs", name_of_blob(b"picture"))
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"picture")
    if exists:
        out = write_run(root / "out", [ONE], [make_grading(ONE, 0.0), make_grading(ONE, 0.5)])
        write_lines(out / "rollouts.rank-0.jsonl", [TWO])
        write_lines(out / "scores.rank-0.jsonl", [make_grading(TWO, 0.5)])
    return root


def merged(root: Path) -> None:
    merge([root / "part"], root / "out", disk=QuickDisk())


def files(run: Path) -> dict[str, bytes]:
    """Every file but locks and the cache, which is of this disk; drafts, too."""
    found = (file for file in run.rglob("*") if file.is_file())
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in found
        if not file.name.startswith(("lock", "metrics.cache"))
    }


def seen(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A hash of what the readers of a run say."""
    if not is_run(run):
        return "no run"
    said = [encode(rollout).decode() for rollout in load(run, attempts="all")]
    for command in READERS:
        main(command.format(run=run).split())
        said.append(capsys.readouterr().out)
    export = run.parent / "sft.jsonl"
    main(["export", str(run), "--to", "sft", "-o", str(export), "--overwrite", "--failed"])
    said.append(export.read_text() if export.exists() else "")
    export.unlink(missing_ok=True)
    capsys.readouterr()
    return hashlib.sha256("\n".join(said).replace(str(run), "RUN").encode()).hexdigest()


@pytest.mark.parametrize("exists", [False, True], ids=["a new run", "a run that is there"])
def test_every_reader_sees_the_old_run_or_the_new_one(
    folder: Path, exists: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    results = killed_everywhere(merged, runs(folder / "before", exists=exists), folder / "results")
    old, new = seen(folder / "before" / "out", capsys), seen(results[-1] / "out", capsys)
    assert old != new
    found = [seen(root / "out", capsys) for root in results]
    moment = found.index(new)
    assert found == [old] * moment + [new] * (len(results) - moment)
    whole = files(results[-1] / "out")
    mixed = [root for root in results if (root / "out" / READY).exists()]
    assert len(mixed) > 5
    for number, root in enumerate(results[:-1]):
        if root in mixed or number % 3 == 0:
            merged(root)
            assert files(root / "out") == whole


def test_another_merge_reads_a_run_whose_merge_was_killed(folder: Path) -> None:
    results = killed_everywhere(merged, runs(folder / "before", exists=True), folder / "results")
    cut = next(root for root in results if (root / "out" / READY).exists())
    for run, into in ((cut, folder / "a" / "all"), (results[-1], folder / "b" / "all")):
        merge([run / "out"], into, disk=QuickDisk())
    assert files(folder / "a" / "all") == files(folder / "b" / "all")
    assert (cut / "out" / READY).exists()


def test_what_an_older_version_had_begun_to_move_in_is_ended_by_the_next_writer(folder: Path) -> None:
    """It moved the files one by one and left no list of them, so that some are in the directory and some are not."""
    results = killed_everywhere(merged, runs(folder / "before", exists=True), folder / "results")
    out = next(root for root in results if (root / "out" / READY).exists()) / "out"
    (out / READY / "whole.json").unlink()
    shutil.move(out / READY / "out" / MANIFEST, out / MANIFEST)
    RunDirectory(out, disk=QuickDisk()).close()
    assert files(out) == files(results[-1] / "out")


def test_a_list_of_a_stranger_removes_nothing_outside_of_the_run(folder: Path) -> None:
    root = runs(folder / "before", exists=True)
    (root / "out" / READY).mkdir()
    (root / "out" / READY / "gone.json").write_bytes(b'["../part/run.json", ".."]')
    RunDirectory(root / "out", disk=QuickDisk()).close()
    assert (root / "part" / MANIFEST).exists()
