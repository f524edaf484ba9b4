"""A lock belongs to the process that took it: none that it has forked keeps it, and nobody takes it from a living owner."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from windrow.errors import StoreError, UsageError
from windrow.services.ports import free_port
from windrow.store import lock as locking
from windrow.store.lock import GUARD, Lock, holder_of
from windrow.util.atomic_files import atomic_file
from windrow.util.process_owner import Owner, is_certainly_dead, this_process

# A process that takes a lock, forks in the way that it is told to, and says who its child is. Both wait for their end.
OWNER = """
import ctypes, multiprocessing, os, sys, time
from pathlib import Path
from windrow.store.lock import Lock

def child():
    print(os.getpid(), flush=True)
    time.sleep(600)

lock = Lock(Path(sys.argv[1]), shared="shared" in sys.argv)
if "os.fork" in sys.argv and os.fork() == 0:
    child()
elif "pool" in sys.argv:
    pool = multiprocessing.get_context("fork").Pool(1)
    print(pool.apply(os.getpid), flush=True)
elif "fork in C" in sys.argv and ctypes.CDLL(None).fork() == 0:
    child()
elif "nothing" in sys.argv:
    print(os.getpid(), flush=True)
time.sleep(600)
"""

# A process that waits for a line, then tries to take the lock and says how that went. It ends with its standard input.
TAKER = """
import sys
from pathlib import Path
from windrow.errors import UsageError
from windrow.store.lock import Lock

print("ready", flush=True)
sys.stdin.readline()
try:
    lock = Lock(Path(sys.argv[1]))
    print("taken", flush=True)
except UsageError as refused:
    print(refused, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def python(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", program, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@contextlib.contextmanager
def orphan(path: Path, *how: str) -> Iterator[int]:
    """A process whose parent has taken the lock and was killed."""
    command = [sys.executable, "-c", OWNER, str(path), *how]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    child = int(said(owner))
    try:
        owner.kill()
        owner.wait()
        os.kill(child, 0)  # it lives
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        assert owner.stdout is not None
        owner.stdout.read()  # until it has let go of the pipe
        owner.stdout.close()


def names(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines() if line.strip()]


@pytest.mark.parametrize("how", ["os.fork", "pool", "fork in C"])
def test_after_a_kill_the_lock_is_free_though_a_forked_process_lives(tmp_path: Path, how: str) -> None:
    with orphan(tmp_path / "lock", how):
        assert holder_of(tmp_path / "lock") is None
        lock = Lock(tmp_path / "lock")
        assert [name["pid"] for name in names(tmp_path / "lock")] == [os.getpid()]
        with python(TAKER, str(tmp_path / "lock")) as other:
            assert said(other) == "ready"
            tell(other)
            assert f"process {os.getpid()}" in said(other)
        lock.release()


@pytest.mark.parametrize("how", ["os.fork", "fork in C"])
def test_of_two_that_take_over_at_once_exactly_one_gets_the_lock(tmp_path: Path, how: str) -> None:
    with (
        orphan(tmp_path / "lock", how),
        python(TAKER, str(tmp_path / "lock")) as first,
        python(TAKER, str(tmp_path / "lock")) as second,
    ):
        assert said(first) == said(second) == "ready"
        tell(first)
        tell(second)
        outcomes = sorted((said(first), said(second)), key="taken".__eq__)
        assert outcomes[1] == "taken"
        assert "is being written by process" in outcomes[0]


@pytest.mark.parametrize("how", ["os.fork", "fork in C"])
def test_a_living_owner_keeps_the_lock_whatever_its_forked_process_does(tmp_path: Path, how: str) -> None:
    lock = Lock(tmp_path / "lock")
    with python(TAKER, str(tmp_path / "lock")) as other:
        assert said(other) == "ready"
        _release_in_a_fork(lock, how)
        tell(other)
        assert f"process {os.getpid()}" in said(other)
    lock.release()
    Lock(tmp_path / "lock").release()


def _release_in_a_fork(lock: Lock, how: str) -> None:
    import ctypes

    child = os.fork() if how == "os.fork" else ctypes.CDLL(None).fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            lock.release()
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    "record",
    [b"", b"\n", b"{", b"\xff\n", b'{"host":"h","pid":1,"start":0}\n', b'{"host":"h","pid":-1,"start":0}\n'],
)
def test_a_living_owner_without_a_readable_name_is_never_robbed(tmp_path: Path, record: bytes) -> None:
    with python(OWNER, str(tmp_path / "lock"), "nothing") as owner:
        said(owner)
        (tmp_path / "lock").write_bytes(record)
        with pytest.raises(UsageError, match="is being written by"):
            Lock(tmp_path / "lock")
        assert holder_of(tmp_path / "lock") is not None


def dead_process() -> Owner:
    """A process of this machine that has ended and was waited for."""
    child = os.fork()
    if child == 0:
        signal.pause()
    owner = msgspec.structs.replace(this_process(), pid=child)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return owner


def test_who_is_certainly_dead() -> None:
    dead, living = dead_process(), this_process()
    assert is_certainly_dead(dead)
    assert not is_certainly_dead(living)
    assert living.ticks is not None
    recycled = msgspec.structs.replace(living, ticks=living.ticks - 1)
    assert is_certainly_dead(recycled)  # its number was given to this process
    elsewhere = msgspec.structs.replace(dead, place="another host, boot or container")
    assert not is_certainly_dead(elsewhere)
    assert not is_certainly_dead(Owner(dead.host, dead.pid, dead.start))  # an earlier version's record


def test_a_process_that_nobody_has_waited_for_is_dead() -> None:
    with python("import time; print(flush=True); time.sleep(600)") as process:
        said(process)
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        ticks = int(stat.rpartition(")")[2].split()[19])
        owner = msgspec.structs.replace(this_process(), pid=process.pid, ticks=ticks)
        assert not is_certainly_dead(owner)
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie
        assert is_certainly_dead(owner)


def test_a_lock_is_taken_over_only_once_all_who_shared_it_are_dead(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with orphan(path, "shared", "fork in C"):
        living = Lock(path, shared=True)
        assert len(names(path)) == 2
        with pytest.raises(UsageError, match=f"process {os.getpid()} on {socket.gethostname()}"):
            Lock(path)
        living.release()
        Lock(path).release()


def test_an_owner_that_cannot_be_named_does_not_hold_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the name of a dead owner before it, a living one could be robbed."""
    (tmp_path / "lock").write_bytes(msgspec.json.encode(dead_process()) + b"\n")
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", lambda *_: 0)
        with pytest.raises(StoreError, match="No space left on device"):
            Lock(tmp_path / "lock", shared=True)
    Lock(tmp_path / "lock").release()


def test_a_guard_that_is_kept_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = """
import fcntl, sys, time
guard = open(sys.argv[1], "w")
fcntl.lockf(guard, fcntl.LOCK_EX)
print("kept", flush=True)
time.sleep(600)
"""
    monkeypatch.setattr(locking, "GUARD_S", 0.05)
    with python(keeper, str(tmp_path / GUARD)) as process:
        assert said(process) == "kept"
        with pytest.raises(UsageError, match="is being written by another process"):
            Lock(tmp_path / "lock")
    Lock(tmp_path / "lock").release()  # it ended with its process


def test_a_forked_process_lets_go_of_ports_and_drafts_and_does_no_harm_to_them(tmp_path: Path) -> None:
    port = free_port()
    with atomic_file(tmp_path / "out", overwrite=False) as file:
        file.write(b"once")  # still in the buffer, which the child has too
        child = os.fork()
        if child == 0:
            port.release()
            file.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert port._lock_file.exists()
    assert (tmp_path / "out").read_bytes() == b"once"
    port.release()
    assert not port._lock_file.exists()
