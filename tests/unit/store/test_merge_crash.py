"""The power fails, or the process is killed, at any call to the disk while runs are merged: nothing is lost, and the same
command comes to the same end."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_disks import CrashDisk, QuickDisk
from tests.support.run_builders import folder_in_memory, make_grading, make_rollout, write_lines, write_run
from windrow import load
from windrow.collecting.merge import merge
from windrow.errors import StoreError
from windrow.records import Timing
from windrow.store.blobs import path_of
from windrow.store.run_directory import RunDirectory
from windrow.util.blobs import name_of_blob
from windrow.util.directory_swap import READY, DirectorySwap

pytestmark = pytest.mark.slow

ONE, TWO, THREE = (make_rollout(name) for name in ("one", "two", "three"))


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder; and a process that is killed clears nothing up."""
    discard = DirectorySwap.discard
    monkeypatch.setattr(
        DirectorySwap,
        "discard",
        lambda swap: None if getattr(swap._disk, "crashed", False) else discard(swap),
    )
    with folder_in_memory() as folder:
        yield folder


def part(path: Path) -> Path:
    """Another run: a verdict more on what is there, another version of it, and something new."""
    late = make_rollout("two", timing=Timing(started_at=1.0))
    write_run(path, [ONE, late, THREE], [make_grading(ONE, 1.0)])
    blob = path_of(path / "blobs", name_of_blob(b"picture"))
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"picture")
    return path


def target(root: Path, *, exists: bool) -> Path:
    root.mkdir()
    if exists:
        write_run(root / "out", [ONE], [make_grading(ONE, 0.0), make_grading(ONE, 0.5)])
        write_lines(root / "out" / "rollouts.rank-0.jsonl", [TWO])
        write_lines(root / "out" / "scores.rank-0.jsonl", [make_grading(TWO, 0.5)])
    return root / "out"


def tree(run: Path) -> dict[str, bytes]:
    """The files of a run, but for its locks, drafts and the cache, which is of this disk."""
    apart = ("lock", ".", "metrics.cache")
    files = (file for file in run.rglob("*") if file.is_file() and not file.name.startswith(apart))
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


@pytest.mark.parametrize("exists", [False, True], ids=["a new run", "a run that is there"])
def test_nothing_is_lost_and_the_same_merge_comes_to_the_same_end(scratch: Path, exists: bool) -> None:
    other = part(scratch / "other")
    expected = target(scratch / "expected", exists=exists)
    merge([other], expected, disk=QuickDisk())
    swaps = 0
    for number in itertools.count(1):
        shutil.rmtree(scratch / "disk", ignore_errors=True)
        out = target(scratch / "disk", exists=exists)
        disk = CrashDisk(scratch / "disk", crash_at=number)
        try:
            with contextlib.suppress(StoreError):
                merge([other], out, disk=disk)
            if not disk.crashed:
                break
            chance = random.Random(number) if number % 2 else None
            cut = disk.survivors(scratch / f"cut-{number}", chance) / "out"
        finally:
            disk.close()
        for run in (out, cut):
            swaps += (run / READY).exists()
            if exists:
                assert {ONE.key, TWO.key} <= {rollout.key for rollout in load(run, attempts="all")}
            merge([other], run, disk=QuickDisk())
            assert tree(run) == tree(expected)
    assert number > 20
    assert swaps > 5


def test_whoever_writes_next_finishes_the_merge_first(scratch: Path) -> None:
    other = part(scratch / "other")
    for number in itertools.count(1):
        shutil.rmtree(scratch / "disk", ignore_errors=True)
        out = target(scratch / "disk", exists=True)
        disk = CrashDisk(scratch / "disk", crash_at=number)
        with contextlib.suppress(StoreError):
            merge([other], out, disk=disk)
        disk.close()
        if (out / READY).exists():
            break
    directory = RunDirectory(out, disk=QuickDisk())
    directory.open_rollouts().append_now(b"")
    directory.close()

    expected = target(scratch / "expected", exists=True)
    merge([other], expected, disk=QuickDisk())
    assert tree(out) == tree(expected)
    assert not (out / READY).exists()
