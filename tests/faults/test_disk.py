"""A disk that fills, may not be written, or does not take what it is given: the run stops and says so, what stood there
stays, and the same command goes on once the disk is well."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Bench, Door
from tests.support.command_process import Outcome, Project
from tests.support.fake_disks import FullDisk, SickDisk
from tests.support.run_builders import attempts, collect, contents, open_run
from windrow.collecting.running import run_collection
from windrow.errors import StoreError

LONG = "42 " + "x" * 4000
JUDGE = """
async def judge(task, reply):
    return 1.0

judge.after_commit = True
"""


def room_of(size: int) -> Callable[[], None]:
    """No file of the process grows beyond this."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def unmistaken(ended: Outcome, says: str) -> None:
    assert ended.code == 1
    assert says in ended.err
    assert not any(word in ended.err for word in ("Traceback", "internal error"))


# -- full


@pytest.mark.slow
def test_a_disk_that_is_full_for_the_verdicts_keeps_the_rollouts_and_they_are_graded_later(
    project: Callable[..., Project],
) -> None:
    home = project()
    home.module("judges", JUDGE)
    flags = ("--scorer", "judges:judge", "-k", "8", "--concurrency", "2")
    assert home.collect("--scorer", "judges:judge", "-k", "2").code == 0
    with (home.run / "scores.jsonl").open("ab") as log:
        log.write(b" " * 200_000 + b"\n")  # a bad line: there is no room beyond it
    unmistaken(
        home.collect(*flags, preexec_fn=room_of(200_000)), "cannot write run/scores.jsonl: File too large"
    )
    kept = home.lines()
    assert home.collect(*flags).code == 0
    assert home.lines()[: len(kept)] == kept
    assert len(home.lines()) == len({line["id"] for line in home.lines()}) == 48
    with pytest.warns(UserWarning, match="is left out"):
        assert {rollout.reward for rollout in home.rollouts()} == {1.0}
    assert home.server.completions <= 48 + 2  # two were under way when the disk was full


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[str], bool]]:
    """A disk of 96 KiB at `folder`, where this process may mount one; what is given out makes it larger."""

    def mount(*options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "windrow-test", str(folder)]
        try:
            return subprocess.run(command, capture_output=True, timeout=30).returncode == 0
        except OSError:
            return False

    mounted = mount("size=96k")
    try:
        yield lambda size: mounted and mount("remount", f"size={size}")
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], capture_output=True, timeout=30, check=True)


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_it_goes_on_when_there_is_room(project: Callable[..., Project]) -> None:
    """A real small disk where one may be mounted; a limit on the size of files everywhere else."""
    home = project(LONG)
    home.run = home.path / "disk" / "run"
    home.run.parent.mkdir()
    flags = ("--out", "disk/run", "-k", "8", "--concurrency", "2")
    with small_disk(home.run.parent) as enlarge:
        mounted = enlarge("96k")
        ended = home.collect(*flags, preexec_fn=None if mounted else room_of(60_000))
        unmistaken(ended, "cannot write disk/run/rollouts.jsonl: ")
        assert ("No space left on device" if mounted else "File too large") in ended.err
        assert (
            "What was collected before is safe; free some space and run the same command again" in ended.err
        )
        kept = (home.run / "rollouts.jsonl").read_bytes()
        assert kept.endswith(b"\n")
        assert 0 < kept.count(b"\n") < 48
        asked = home.server.completions
        assert not mounted or enlarge("8m")
        assert home.collect(*flags).code == 0
        assert (home.run / "rollouts.jsonl").read_bytes().startswith(kept)
        assert home.server.completions - asked == 48 - kept.count(b"\n")
        assert len({line["id"] for line in home.lines()}) == len(home.lines()) == 48


async def test_a_log_of_bad_lines_is_told_in_few_words(tmp_path: Path) -> None:
    await collect(tmp_path / "run")
    for name in ("rollouts.jsonl", "scores.jsonl", "tasks.jsonl"):
        with (tmp_path / "run" / name).open("ab") as log:
            log.write(b"\n" * 10_000)
    told: list[str] = []
    collection = open_run(tmp_path / "run", on_warning=told.append)
    summary = await run_collection(collection)
    assert summary.complete
    assert len(told) == 22
    assert [text for text in told if "more such lines are left out" in text] == [
        "19,990 more such lines are left out",
        "9,990 more such lines are left out",
    ]


@pytest.mark.parametrize("room", [0, 1, 500, 3_000, 5_000, 9_000])
async def test_wherever_the_disk_fills_the_run_comes_to_the_same_end(tmp_path: Path, room: int) -> None:
    await collect(tmp_path / "plain")
    out = tmp_path / "run"
    with pytest.raises(StoreError, match=r"cannot (write|open)"):
        await collect(out, disk=FullDisk(room))
    before = attempts(out) if (out / "run.json").exists() else []
    summary, _ = await collect(out)
    assert summary.complete
    assert attempts(out)[: len(before)] == before
    assert contents(out) == contents(tmp_path / "plain")


# -- not to be written


def without_privileges() -> None:
    """Root without the right to pass over permissions; to anyone else nothing changes."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.slow
def test_a_directory_that_may_not_be_written_is_named_before_anything_is_sent(
    project: Callable[..., Project],
) -> None:
    home = project()
    home.run = home.path / "fixed" / "run"
    home.run.parent.mkdir(mode=0o555)
    ended = home.collect("--out", "fixed/run", preexec_fn=without_privileges)
    unmistaken(ended, "cannot write in fixed/run: Permission denied")
    assert not home.server.requests
    home.run.parent.chmod(0o755)
    assert home.collect("--out", "fixed/run", preexec_fn=without_privileges).code == 0
    assert len(home.lines()) == 6


FIXED = [
    ("rollouts.jsonl", 0o444, "cannot open run/rollouts.jsonl for writing: Permission denied"),
    ("tasks.jsonl", 0o444, "cannot open run/tasks.jsonl for writing: Permission denied"),
    ("run.json", 0o000, "cannot read run/run.json: Permission denied"),
    ("lock", 0o000, "Permission denied"),
]


@pytest.mark.slow
def test_a_file_of_the_run_that_may_not_be_written_is_named(project: Callable[..., Project]) -> None:
    home = project()
    assert home.collect("--limit", "2").code == 0
    before = home.lines()
    for name, mode, says in FIXED:
        (home.run / name).chmod(mode)
        unmistaken(home.collect(preexec_fn=without_privileges), says)
        (home.run / name).chmod(0o644)
    assert home.server.completions == 2
    assert home.collect(preexec_fn=without_privileges).code == 0
    assert home.lines()[:2] == before
    assert len(home.lines()) == 6


# -- not taking what it is given


@pytest.mark.parametrize("sick_from", range(1, 12))
async def test_wherever_a_sync_fails_the_run_stops_and_comes_to_the_same_end(
    tmp_path: Path, sick_from: int
) -> None:
    await collect(tmp_path / "plain")
    out = tmp_path / "run"
    disk = SickDisk(sick_from)
    told: list[Any] = []
    problem: StoreError | None = None
    try:
        _, told = await collect(out, disk=disk)
    except StoreError as raised:
        problem = raised
    assert (problem is not None) == (disk.syncs >= sick_from)
    assert problem is None or any(word in str(problem) for word in ("fsync", "cannot open", "cannot write"))
    before = attempts(out) if (out / "run.json").exists() else []
    assert {(r.id, r.attempt) for r in told} <= set(before)
    summary, _ = await collect(out)
    assert summary.complete
    assert set(before) <= set(attempts(out))
    assert len(attempts(out)) == len(set(attempts(out)))
    assert contents(out, "final") == contents(tmp_path / "plain", "final")


def test_a_sync_that_fails_is_told_to_the_user_and_the_run_continues_later(
    bench: Bench, served: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    served(Door(None))
    assert bench.collect("--limit", "1").code == 0
    before = bench.log
    real, log = os.fsync, (bench.run / "rollouts.jsonl").stat().st_ino

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if status.st_ino == log and status.st_size > len(before):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    ended = bench.collect()
    assert ended.code == 1
    assert (
        "the disk did not take what was written to run/rollouts.jsonl (fsync: Input/output error)"
        in ended.err
    )
    assert "Check the disk, then run the same command again" in ended.err
    assert bench.log == before  # what is not known to be safe is not left standing as if it were
    monkeypatch.setattr(os, "fsync", real)
    assert bench.collect().code == 0
    assert bench.log.startswith(before)
    assert len(bench.lines()) == 6
