"""One writer at a time: the second is refused and told who holds the lock; the lock ends with its process."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_disks import QuickDisk
from tests.support.run_builders import collect, open_run, write_run
from windrow.errors import StoreError, UsageError
from windrow.store.lock import Lock
from windrow.store.reader import load
from windrow.store.run_directory import RunDirectory

HOLD = """
import sys
from pathlib import Path
from windrow.store.lock import Lock
lock = Lock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds the lock of `tmp_path / "run"`."""
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run" / "lock")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system has no locks."""

    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    with pytest.raises(UsageError) as refused:
        RunDirectory(tmp_path / "run")
    assert f"process {other.pid} on {socket.gethostname()}" in str(refused.value)
    assert str(tmp_path / "run") in str(refused.value)


def test_a_refused_writer_leaves_the_holder_its_name(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    for _ in range(2):
        with pytest.raises(UsageError, match=f"process {other.pid}"):
            Lock(tmp_path / "run" / "lock")


def test_the_lock_ends_with_its_process_however_that_ends(
    tmp_path: Path, other: subprocess.Popen[str]
) -> None:
    other.kill()
    other.wait()
    Lock(tmp_path / "run" / "lock").release()


def test_the_lock_names_its_holder_in_json(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    holder = json.loads((tmp_path / "lock").read_bytes())
    lock.release()
    assert (holder["host"], holder["pid"]) == (socket.gethostname(), os.getpid())
    assert holder["start"] > 0


def test_a_longer_name_of_an_earlier_holder_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"x" * 1000)
    lock = Lock(tmp_path / "lock")
    assert json.loads((tmp_path / "lock").read_bytes())["pid"] == os.getpid()
    lock.release()


@pytest.mark.parametrize("name", [b"", b"not json", b'{"pid":', b"\xff\xfe"])
def test_a_holder_without_a_readable_name_is_another_process(tmp_path: Path, name: bytes) -> None:
    lock = Lock(tmp_path / "lock")
    (tmp_path / "lock").write_bytes(name)
    with pytest.raises(UsageError, match="being written by another process"):
        Lock(tmp_path / "lock")
    lock.release()


def test_a_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(3):
        Lock(tmp_path / "lock").release()


def test_writers_of_different_segments_do_not_wait_for_each_other(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    directories = [RunDirectory(tmp_path / "run", writer=name, disk=QuickDisk()) for name in ("a", "b")]
    logs = [directory.open_rollouts() for directory in directories]
    assert [log.path.name for log in logs] == ["rollouts.a.jsonl", "rollouts.b.jsonl"]
    with pytest.raises(UsageError, match="is being written by"):
        RunDirectory(tmp_path / "run", writer="a", disk=QuickDisk())
    for directory in directories:
        directory.close()


def test_a_run_being_collected_is_refused_to_others_and_can_be_read(tmp_path: Path) -> None:
    collection = open_run(tmp_path / "run")
    with pytest.raises(UsageError, match=f"process {os.getpid()}"):
        open_run(tmp_path / "run")
    with pytest.raises(UsageError, match=f"process {os.getpid()}"):
        open_run(tmp_path / "run", overwrite=True)
    assert list(load(tmp_path / "run")) == []
    collection.close()
    open_run(tmp_path / "run").close()


def test_a_run_that_could_not_be_opened_is_not_left_locked(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    good = (run / "run.json").read_bytes()
    (run / "run.json").write_bytes(b"{")
    with pytest.raises(StoreError):
        RunDirectory(run)
    (run / "run.json").write_bytes(good)
    RunDirectory(run).close()


def test_a_collection_that_was_refused_is_not_left_locked(tmp_path: Path) -> None:
    open_run(tmp_path / "run").close()
    with pytest.raises(UsageError, match="temperature"):
        open_run(tmp_path / "run", temperature=0.5)
    open_run(tmp_path / "run").close()


def test_where_there_are_no_locks_the_error_names_the_flag(tmp_path: Path, no_locks: None) -> None:
    with pytest.raises(StoreError) as failure:
        open_run(tmp_path / "run")
    assert "--no-lock" in str(failure.value)
    assert os.strerror(errno.ENOLCK) in str(failure.value)


async def test_without_locks_a_run_is_collected_continued_and_moved_aside(
    tmp_path: Path, no_locks: None
) -> None:
    summary, _ = await collect(tmp_path / "run", lock=False)
    assert summary.done == 6
    summary, _ = await collect(tmp_path / "run", lock=False, samples=3)
    assert summary.attempts == 3
    summary, _ = await collect(tmp_path / "run", lock=False, overwrite=True)
    assert summary.attempts == 6


def test_a_released_lock_is_free_though_a_forked_process_has_its_file(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    inherited = os.dup(lock._descriptor)  # as a fork has it
    lock.release()
    Lock(tmp_path / "lock").release()
    os.close(inherited)
