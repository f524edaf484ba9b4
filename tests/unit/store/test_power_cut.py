"""The power fails, or the process is killed, at any call to the disk: what was reported committed is there.

The disk is `CrashDisk`, which forgets what was never synced. Each test cuts the power at the first call, at the second,
and so on, until the run comes to its end before the cut.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import image_env, match_game
from tests.support.fake_disks import CrashDisk
from tests.support.run_builders import (
    attempts,
    collect,
    contents,
    folder_in_memory,
    judge,
    lasting,
    open_run,
    rows,
)
from windrow.collecting.running import run_collection
from windrow.errors import InfraError, StoreError
from windrow.policies.base import Request
from windrow.records import Rollout
from windrow.store.blobs import read_blob
from windrow.store.manifest import read_manifest

pytestmark = pytest.mark.slow

Call = dict[str, Any]


class Story(NamedTuple):
    """What was collected before, and the call during which the power fails."""

    before: list[Call]
    call: Call


def busy(request: Request) -> str:
    raise InfraError("busy")


SMALL: Call = {"tasks": rows(2), "samples": 2, "concurrency": 2}
STORIES = {
    "a new run": Story([], SMALL),
    "more samples and tasks": Story([{**SMALL, "samples": 1, "limit": 1}], SMALL),
    "a redo": Story([SMALL], {**SMALL, "redo": "sample=1"}),
    "a regrade": Story(
        [{**SMALL, "scorers": ("exact",)}], {**SMALL, "regrade": True, "scorers": (judge, "exact")}
    ),
    "a match": Story(
        [],
        {
            **SMALL,
            "tasks": [{"id": "one", "seats": 3, "rounds": 1}, {"id": "two", "seats": 2, "rounds": 1}],
            "env": "tests.support.match_game:Tagged",
            "answer": match_game.echo,
            "scorers": (),
        },
    ),
    "pictures": Story(
        [],
        {
            **SMALL,
            "env": "tests.support.image_env:Pictured",
            "answer": image_env.seen,
            "scorers": (),
            "concurrency": 1,
        },
    ),
    "retries of what failed": Story([{**SMALL, "answer": busy}], {**SMALL, "retries": 1}),
}


@pytest.fixture
def scratch() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


async def resolve(root: Path, story: Story) -> Path:
    """The run as the calls before left it, under `root`."""
    root.mkdir()
    for call in story.before:
        await collect(root / "run", **call)
    return root / "run"


async def crash(run: Path, disk: CrashDisk, call: Call) -> list[Rollout]:
    """Make the call on a disk that crashes: what it reported as committed before that."""
    committed: list[Rollout] = []
    with contextlib.suppress(StoreError):
        collection = open_run(run, disk=disk, **call)
        await run_collection(collection, on_commit=committed.append)
    return committed


def assert_kept(run: Path, committed: list[Rollout], before: list[dict[str, Any]]) -> None:
    kept = contents(run) if (run / "run.json").exists() else []
    for rollout in committed:
        assert lasting(rollout) in kept, "reported committed, and lost"
    for name in (name for rollout in kept for name in image_env.blobs_of(rollout)):
        read_blob(run / "blobs", name)
    ids = {(rollout["id"], rollout["attempt"]) for rollout in kept}
    assert {(rollout["id"], rollout["attempt"]) for rollout in before} <= ids
    assert len(ids) == len(kept), "doubled"


def again(run: Path, call: Call) -> Call:
    """The same call once more; a redo that came to its end is not asked for a second time."""
    if (
        "redo" in call
        and any(attempt > 1 for _, attempt in attempts(run))
        and read_manifest(run).redo is None
    ):
        return {**call, "redo": None}
    return call


async def cuts(scratch: Path, story: Story) -> AsyncIterator[tuple[Path, CrashDisk, list[Rollout]]]:
    """The story with the power cut at call 1, at call 2, …: the run, its disk, and what was reported before the cut."""
    for number in itertools.count(1):
        shutil.rmtree(scratch / "disk", ignore_errors=True)
        run = await resolve(scratch / "disk", story)
        disk = CrashDisk(scratch / "disk", crash_at=number)
        try:
            committed = await crash(run, disk, story.call)
            if not disk.crashed:
                return
            yield run, disk, committed
        finally:
            disk.close()


async def whole(scratch: Path, story: Story) -> list[dict[str, Any]]:
    """What the run holds when nothing happens to it."""
    run = await resolve(scratch / "whole", story)
    await collect(run, **story.call)
    return contents(run)


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
async def test_nothing_reported_committed_is_lost_and_the_run_comes_to_the_same_end(
    scratch: Path, story: Story
) -> None:
    expected = await whole(scratch, story)
    before = contents(await resolve(scratch / "before", story)) if story.before else []
    reported: list[int] = []
    async for _, disk, committed in cuts(scratch, story):
        number = len(reported)
        strict = disk.survivors(scratch / f"strict-{number}") / "run"
        lucky = disk.survivors(scratch / f"lucky-{number}", random.Random(number)) / "run"
        assert_kept(strict, committed, before)
        assert_kept(lucky, committed, before)
        left = lucky if number % 2 else strict
        await collect(left, **again(left, story.call))
        assert contents(left) == expected
        reported.append(len(committed))
    assert len(reported) > 20
    assert story.call.get("regrade") or len(set(reported)) > 2, "no cut fell between two commits"


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
async def test_what_a_killed_process_left_in_memory_is_durable_once_the_next_call_counts_it(
    scratch: Path, story: Story
) -> None:
    expected = await whole(scratch, story)
    number = 0
    async for run, disk, _ in cuts(scratch, story):
        number += 1
        disk.restart()
        summary, _ = await collect(run, disk=disk, **again(run, story.call))
        assert summary.complete
        left = disk.survivors(scratch / f"left-{number}") / "run"
        assert contents(left) == expected
    assert number > 20


async def test_a_torn_tail_is_in_the_log_or_in_torn_wherever_the_power_fails(scratch: Path) -> None:
    story = Story([SMALL], SMALL)
    torn = b'{"v":1,"id":"half a li'
    expected = await whole(scratch, story)
    number = 0

    def lost(run: Path) -> bool:
        kept = [file.read_bytes() for file in (run / "torn").glob("*")] if (run / "torn").exists() else []
        return torn not in kept and not (run / "rollouts.jsonl").read_bytes().endswith(b"\n" + torn)

    for crash_at in itertools.count(1):
        shutil.rmtree(scratch / "disk", ignore_errors=True)
        run = await resolve(scratch / "disk", story)
        with (run / "rollouts.jsonl").open("ab") as file:
            file.write(torn)
        disk = CrashDisk(scratch / "disk", crash_at=crash_at)
        await crash(run, disk, SMALL)
        if not disk.crashed:
            disk.close()
            break
        number += 1
        assert not lost(disk.survivors(scratch / f"cut-{number}") / "run")
        assert not lost(disk.survivors(scratch / f"luck-{number}", random.Random(number)) / "run")
        disk.restart()
        await collect(run, disk=disk, **SMALL)
        left = disk.survivors(scratch / f"killed-{number}") / "run"
        assert not lost(left)
        disk.close()
        assert contents(left) == expected
    assert number > 10


async def test_an_overwritten_run_is_whole_under_the_one_name_or_the_other(scratch: Path) -> None:
    story = Story([SMALL], {**SMALL, "overwrite": True, "temperature": 0.5})
    before = contents(await resolve(scratch / "before", story))
    number = 0
    async for _, disk, committed in cuts(scratch, story):
        number += 1
        left = disk.survivors(scratch / f"left-{number}", random.Random(number) if number % 2 else None)
        aside = left / "run.old-1"
        assert contents(aside if aside.exists() else left / "run") == before
        assert_kept(left / "run", committed, [])
    assert number > 20


@pytest.mark.parametrize("seed", range(8))
async def test_crash_after_crash_ends_where_an_undisturbed_run_ends(scratch: Path, seed: int) -> None:
    chance = random.Random(seed)
    call: Call = {**SMALL, "tasks": rows(4), "samples": 3}
    expected = await whole(scratch, Story([], call))
    committed: list[Rollout] = []
    crashes = 0
    root = scratch / "0"
    root.mkdir()
    for number in range(1, 6):
        disk = CrashDisk(root)
        for _ in range(chance.randint(1, 3)):  # the process is killed, and the machine runs on
            disk.restart(crash_at=chance.randint(1, 25))
            committed += await crash(root / "run", disk, call)
            crashes += disk.crashed
        root = disk.survivors(scratch / str(number), chance if chance.random() < 0.5 else None)
        disk.close()
        assert_kept(root / "run", committed, [])
    await collect(root / "run", **call)
    assert contents(root / "run") == expected
    assert crashes > 2
