"""A fork server: each call has a fresh process that can do nothing but compute, and none outlives its caller."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.collect_helpers import until
from tests.support.process_states import children_of, gone
from windrow.util.confinement import Confinement, holding
from windrow.util.forked_calls import CallFailed, ForkServer

ROOT = Path(__file__).parents[3]
PATH = [str(ROOT), *(path for path in sys.path if path)]
MODULE = "tests.support.confined_calls"


def made(argument: str = "", **options: object) -> ForkServer:
    return ForkServer(MODULE, argument=argument, path=PATH, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    started = made()
    yield started
    started.stop()


async def told(server: ForkServer, code: str, *, cpu_s: int = 5) -> str:
    return (await server.ask(code.encode(), cpu_s=cpu_s)).decode()


def pid_of(server: ForkServer) -> int:
    assert server._server is not None
    return server._server.process.pid


async def test_what_one_call_changes_is_unchanged_in_the_next(server: ForkServer) -> None:
    assert (
        await told(server, "STATE.update(a=1) or setattr(os, 'sep', '!') or (STATE, os.sep)")
        == "({'a': 1}, '!')"
    )
    assert await told(server, "(STATE, os.sep)") == "({}, '/')"


async def test_a_key_is_warmed_in_the_server_for_the_calls_after_it() -> None:
    server = made()
    assert await server.ask(b"STATE", cpu_s=5, warm="a") == b"{'warmed': 1}"
    assert await server.ask(b"STATE.pop('warmed')", cpu_s=5) == b"1"
    server.stop()


@pytest.mark.parametrize(
    "code",
    [
        "os.execv('/bin/true', ['true'])",
        "os.fork()",
        "__import__('subprocess').run('true')",
        "__import__('socket').socket()",
        "__import__('socket').socket(1)",
        "__import__('threading').Thread(target=print).start()",
        "os.kill(os.getppid(), 9)",
        "os.kill(-1, 0)",
        "__import__('signal').pidfd_send_signal(os.pidfd_open(os.getppid()), 9)",
        "__import__('fcntl').fcntl(3, 8, os.getppid())",  # F_SETOWN: the kernel would send it a signal
        "__import__('resource').setrlimit(7, (1 << 20, 1 << 20))",
        "os.sched_setaffinity(os.getppid(), [0])",
        "os.setpriority(0, os.getppid(), 19)",
        "os.memfd_create('x')",
        "os.chroot('/')",
        "os.setuid(0)",
        "open(f'/proc/{os.getppid()}/environ').read()",
        "open('/proc/self/environ').read()",
        "os.listdir('/proc')",
        "open('/etc/passwd').read()",
    ],
)
async def test_a_call_reaches_no_program_network_process_or_file(server: ForkServer, code: str) -> None:
    answer = await told(server, code)
    assert answer.startswith(
        ("PermissionError: ", "RuntimeError: can't start new thread", "ValueError: not allowed")
    )


async def test_a_call_changes_no_file_also_where_it_may_read(tmp_path: Path) -> None:
    server = ForkServer(MODULE, path=[*PATH, str(tmp_path)])
    kept = tmp_path / "kept"
    kept.write_text("old")
    mode = kept.stat().st_mode
    for code in (
        f"open({str(kept)!r}, 'w')",
        f"open({str(kept)!r}, 'a')",
        f"os.open({str(tmp_path)!r}, os.O_TMPFILE | os.O_RDWR)",
        f"os.truncate({str(kept)!r}, 0)",
        f"os.remove({str(kept)!r})",
        f"os.rename({str(kept)!r}, {str(tmp_path / 'new')!r})",
        f"os.mkdir({str(tmp_path / 'new')!r})",
        f"os.symlink('/', {str(tmp_path / 'new')!r})",
        f"os.chmod({str(kept)!r}, 0)",
        f"os.utime({str(kept)!r})",
        f"os.system('touch {tmp_path}/new')",
    ):
        assert (await told(server, code)).startswith("PermissionError: ") or "system" in code
    assert await told(server, f"open({str(kept)!r}).read()") == "old"
    assert ([path.name for path in tmp_path.iterdir()], kept.read_text(), kept.stat().st_mode) == (
        ["kept"],
        "old",
        mode,
    )
    server.stop()


async def test_a_call_has_no_secret_and_no_descriptor_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDROW_CANARY", "tweet")
    readable, writable = os.pipe()
    os.set_inheritable(writable, True)
    server = made()
    assert await told(server, "os.environ.get('WINDROW_CANARY')") == "None"
    for descriptor in (4, 5, 6, 7, writable):
        assert (await told(server, f"os.fstat({descriptor})")).startswith("OSError: [Errno 9]")
    os.close(readable)
    os.close(writable)
    server.stop()


async def test_nothing_arrives_where_a_call_connects_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as canary:
        server = made()
        code = f"__import__('socket').create_connection(('127.0.0.1', {canary.getsockname()[1]}), 5)"
        assert (await told(server, code)).startswith("PermissionError: ")
        canary.setblocking(False)
        with pytest.raises(BlockingIOError):
            canary.accept()
        server.stop()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os._exit(7)", "its process ended with 7 and gave no answer"),
        ("os._exit(0)", "its process ended with 0 and gave no answer"),
        ("sys.exit()", "its process ended with 1 and gave no answer"),
        ("os.abort()", f"its process ended with -{int(signal.SIGABRT)} and gave no answer"),
        ("os.close(3)", "its process ended with 1 and gave no answer"),
        ("os.write(3, b'x' * 9)", "its process wrote something else than one answer"),
        ("os.write(3, b'\\0\\0\\0\\1x')", "its process wrote something else than one answer"),
        (
            "[os.write(3, b'\\0\\0\\0\\1x' * 1000) for _ in iter(int, 1)]",
            "its process wrote more than 4,194,304 bytes",
        ),
    ],
)
async def test_a_call_that_goes_wrong_fails_alone_and_says_how(
    server: ForkServer, code: str, reason: str
) -> None:
    with pytest.raises(CallFailed) as failed:
        await told(server, code)
    assert str(failed.value) == reason
    assert not failed.value.out_of_time
    assert await told(server, "1 + 1") == "2"


async def test_memory_is_bounded(server: ForkServer) -> None:
    assert (await told(server, "len(bytearray(2 << 30))")).startswith("MemoryError")


@pytest.mark.parametrize(
    "code", ["[0 for _ in iter(int, 1)]", "[__import__('signal').signal(24, 1), 9**9**9]"]
)
async def test_processor_time_is_bounded_also_for_a_call_that_ignores_the_signal(
    server: ForkServer, code: str
) -> None:
    with pytest.raises(CallFailed) as failed:
        await told(server, code, cpu_s=1)
    assert failed.value.out_of_time
    assert await told(server, "1 + 1") == "2"


async def test_a_call_that_is_given_up_is_killed(server: ForkServer) -> None:
    await told(server, "1")
    call = asyncio.ensure_future(told(server, "time.sleep(1000)"))
    await until(lambda: children_of(pid_of(server)))
    children = children_of(pid_of(server))
    call.cancel()
    await gone(*children)


async def test_a_scratch_directory_is_a_calls_own_and_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = made(confinement=Confinement(scratch=True))
    written = await told(
        server,
        "(lambda d: [open(d + '/a', 'w').write('x'), os.mkdir(d + '/b'), os.rename(d + '/a', d + '/b/a'), d])"
        "(__import__('tempfile').mkdtemp())[-1]",
    )
    assert written.startswith(str(tmp_path))
    await until(lambda: not any(path.is_dir() for path in tmp_path.glob("*/*")))
    [own] = tmp_path.iterdir()
    refused = await told(server, f"open({str(own / 'other')!r}, 'w')")
    assert refused.startswith("PermissionError: ")
    server.stop()
    assert not own.exists()


async def test_where_the_kernel_refuses_the_confinement_nothing_is_run() -> None:
    refuse = "from windrow.util.confinement import landlock\ndef refuse(*_): raise OSError(1, 'no')\nlandlock.restrict = refuse"
    server = made(refuse)
    with pytest.raises(CallFailed, match="could not be confined"):
        await told(server, "1")
    server.stop()


async def test_where_the_kernel_offers_nothing_a_fence_still_stops_accidents(tmp_path: Path) -> None:
    without = "from windrow.util.confinement import rights\nrights.holding = lambda: rights.Holding(0, False)"
    server = made(without)
    for code in (
        "os.system('true')",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        "__import__('socket').socket()",
    ):
        assert (await told(server, code)).startswith("PermissionError: a confined process may not do this")
    server.stop()


async def test_a_module_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(
        CallFailed, match="could not start: ModuleNotFoundError: No module named 'no_such_module'"
    ):
        await ForkServer("no_such_module").ask(b"1", cpu_s=1)


async def test_a_server_that_has_ended_is_replaced(server: ForkServer) -> None:
    await told(server, "1")
    first = pid_of(server)
    os.kill(first, signal.SIGKILL)
    assert await told(server, "2") == "2"
    assert pid_of(server) != first


@pytest.mark.parametrize("moment", ["importing", "answering", "idle"])
async def test_a_caller_that_is_killed_leaves_no_process(tmp_path: Path, moment: str) -> None:
    """Also where a fork of the caller, such as a process pool's, has inherited its sockets."""
    mark = tmp_path / "pid"
    marks = f"import os, pathlib; pathlib.Path({str(mark)!r}).write_text(str(os.getpid()))"
    argument = f"{marks}; import time; time.sleep(1000)" if moment == "importing" else marks
    code = {"importing": "1", "answering": "time.sleep(1000)", "idle": "1"}[moment]
    script = f"""
import asyncio, os, sys, time
from windrow.util.forked_calls import ForkServer
async def main():
    server = ForkServer({MODULE!r}, argument={argument!r}, path={PATH!r})
    asked = asyncio.ensure_future(server.ask({code!r}.encode(), cpu_s=1000))
    if {moment == "idle"}:
        await asked
    if {moment != "importing"}:
        while server._server is None:
            await asyncio.sleep(0.01)
        if os.fork() == 0:
            time.sleep(1000)
    print("ready", flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""
    with subprocess.Popen(  # noqa: ASYNC220 (it starts at once)
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"ready\n"
        await until(lambda: mark.exists() and mark.read_text())
        server = int(mark.read_text())
        await until(lambda: moment != "answering" or children_of(server))
        children = children_of(server)
        fork = [pid for pid in children_of(caller.pid) if pid != server]
        caller.kill()
        await gone(server, *children)
        for pid in fork:
            os.kill(pid, signal.SIGKILL)


def test_what_holds_here_is_said() -> None:
    assert str(holding()).startswith("seccomp, Landlock "), "these tests are about a Linux that has both"
