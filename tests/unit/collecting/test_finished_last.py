"""A redo or a rescore that is killed at any call to the disk, also while metrics.json is made, repeats nothing that was done."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import windrow
from tests.support.fake_disks import CrashDisk
from tests.support.run_builders import attempts, collect, folder_in_memory, judge, open_run, rows
from windrow.collecting.running import run_collection
from windrow.errors import StoreError
from windrow.records import Task
from windrow.stats.metrics import unchanged_metrics
from windrow.store import run_directory
from windrow.store.manifest import read_manifest

pytestmark = pytest.mark.slow

TASKS = rows(2)


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


async def redo(run: Path, disk: CrashDisk | None = None) -> None:
    collection = open_run(run, tasks=TASKS, samples=1, redo="sample=0", disk=disk)
    await run_collection(collection, aggregate=True)


async def test_a_redo_that_is_killed_is_finished_by_the_same_command_and_not_begun_again(
    folder: Path,
) -> None:
    await collect(folder / "before" / "run", tasks=TASKS, samples=1)
    while_measured = 0
    for number in itertools.count(1):
        root = folder / "disk"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(folder / "before", root)
        disk = CrashDisk(root, crash_at=number)
        with contextlib.suppress(StoreError):
            await redo(root / "run", disk)
        disk.close()
        if not disk.crashed:
            break
        done = Counter(attempt for _, attempt in attempts(root / "run"))[2]
        if done and read_manifest(root / "run").redo is None:
            assert done == len(TASKS)
            assert unchanged_metrics(root / "run", envs={}) is not None
            continue  # the last rename was made: it is finished
        while_measured += done == len(TASKS)
        await redo(root / "run")
        assert Counter(attempt for _, attempt in attempts(root / "run")) == {1: 2, 2: 2}
    assert while_measured > 3


def verdicts_of(run: Path, generation: int) -> int:
    """How many whole lines there are."""
    lines = (run / "scores.jsonl").read_bytes().split(b"\n")[:-1]
    return sum(b'"generation":%d,' % generation in line for line in lines)


async def test_a_rescore_that_is_killed_is_finished_by_the_same_call_and_not_begun_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(task: Task, reply: str) -> float:
        return 0.5

    await collect(folder / "before" / "run", tasks=TASKS, samples=1, scorers=(judge,))
    while_measured = 0
    for number in itertools.count(1):
        root = folder / "disk"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(folder / "before", root)
        disk = CrashDisk(root, crash_at=number)
        with monkeypatch.context() as patched:
            patched.setattr(run_directory, "Disk", lambda disk=disk: disk)
            with contextlib.suppress(StoreError):
                await windrow.rescore(root / "run", scorers=[half])
        disk.close()
        if not disk.crashed:
            break
        manifest = read_manifest(root / "run")
        verdicts = verdicts_of(root / "run", generation=2)
        if manifest.rescore is None and verdicts:
            assert unchanged_metrics(root / "run", envs={}) is not None
            continue  # the last rename was made: it is finished
        while_measured += verdicts == len(TASKS)
        await windrow.rescore(root / "run", scorers=[half])
        assert verdicts_of(root / "run", generation=2) == len(TASKS)
        manifest = read_manifest(root / "run")
        assert (len(manifest.generations), manifest.rescore) == (2, None)
        assert manifest.grading is not None
        assert manifest.grading.generation == 2
    assert while_measured > 3
