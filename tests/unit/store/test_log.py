"""The log: what is appended is durable, whole and in order; what is torn is set aside; a failing disk stops it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_disks import CountingDisk, FullDisk, QuickDisk, SickDisk
from windrow.errors import StoreError
from windrow.store.log import TAIL_CHUNK, Log
from windrow.util.disk import Disk


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Any]:
    logs: list[Log] = []

    def opened(disk: Disk | None = None, name: str = "rollouts.jsonl") -> Log:
        logs.append(Log(tmp_path / name, disk or QuickDisk()))
        return logs[-1]

    yield opened
    for log in logs:
        log.close()


async def test_a_line_is_in_the_file_when_append_returns(open_log: Any) -> None:
    log = open_log(Disk())
    for number in range(3):
        await log.append(b"line %d\n" % number)
        assert log.path.read_bytes().splitlines()[-1] == b"line %d" % number


async def test_append_returns_only_after_the_sync(open_log: Any) -> None:
    disk = CountingDisk()
    log = open_log(disk)
    disk.hold()
    appending = asyncio.create_task(log.append(b"a\n"))
    await asyncio.to_thread(disk.wait_for_sync)
    for _ in range(10):
        await asyncio.sleep(0)
    early = appending.done()
    disk.release()
    await appending
    assert not early


async def test_concurrent_appends_share_a_sync(open_log: Any) -> None:
    disk = CountingDisk()
    log = open_log(disk)
    before = disk.syncs
    disk.hold()
    appends = [asyncio.create_task(log.append(b"%d\n" % number)) for number in range(100)]
    await asyncio.to_thread(disk.wait_for_sync)  # the first is under way; the others wait behind it
    disk.release()
    await asyncio.gather(*appends)
    assert disk.syncs - before == 2
    assert log.path.read_bytes() == b"".join(b"%d\n" % number for number in range(100))


async def test_every_append_that_waits_for_the_last_has_a_sync_of_its_own(open_log: Any) -> None:
    disk = CountingDisk()
    log = open_log(disk)
    before = disk.syncs
    for _ in range(5):
        await log.append(b"x\n")
    assert disk.syncs - before == 5


def test_append_now_is_synced(open_log: Any) -> None:
    disk = CountingDisk()
    log = open_log(disk)
    before = disk.syncs
    log.append_now(b"a\nb\n")
    assert (disk.syncs - before, log.path.read_bytes()) == (1, b"a\nb\n")


def test_what_a_killed_writer_left_is_synced_before_it_is_counted(open_log: Any, tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").write_bytes(b"whole\n")
    disk = CountingDisk()
    open_log(disk)
    assert disk.syncs == 1


async def test_an_append_that_is_cancelled_is_still_written(open_log: Any) -> None:
    disk = CountingDisk()
    log = open_log(disk)
    disk.hold()
    appends = [asyncio.create_task(log.append(b"%d\n" % number)) for number in range(3)]
    await asyncio.sleep(0)
    for append in appends:
        append.cancel()
    await asyncio.gather(*appends, return_exceptions=True)
    disk.release()
    await log.append(b"3\n")
    assert log.path.read_bytes() == b"0\n1\n2\n3\n"


async def test_closing_writes_what_still_waits(tmp_path: Path) -> None:
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    disk = CountingDisk()
    log = Log(tmp_path / "log", disk)
    disk.hold()
    appends = [asyncio.create_task(log.append(b"%d\n" % number)) for number in range(3)]
    await asyncio.sleep(0)
    for append in appends:
        append.cancel()
    await asyncio.gather(*appends, return_exceptions=True)
    disk.release()
    log.close()
    await asyncio.sleep(0.01)
    assert log.path.read_bytes() == b"0\n1\n2\n"
    assert problems == []


# -- torn tails


@pytest.mark.parametrize(
    ("whole", "tail"),
    [
        (b'{"id":1}\n{"id":2}\n', b'{"id":3,"mess'),
        (b"", b'{"id":1'),
        (b'{"id":1}\n', b"\0" * 4096),
        (b'{"id":1}\n', b"\xff\xfe\x80 not text"),
        (b"x" * 100 + b"\n", b"y" * (3 * TAIL_CHUNK + 17)),
        (b"x" * (TAIL_CHUNK - 1) + b"\n", b"y" * TAIL_CHUNK),
        (b"\n", b"{"),
    ],
    ids=["half a line", "nothing else", "zeros", "not text", "longer than a chunk", "a chunk", "one byte"],
)
def test_a_torn_tail_is_set_aside_byte_for_byte(
    open_log: Any, tmp_path: Path, whole: bytes, tail: bytes
) -> None:
    (tmp_path / "rollouts.jsonl").write_bytes(whole + tail)
    log = open_log()
    assert log.path.read_bytes() == whole
    assert log.torn is not None
    assert log.torn.parent == tmp_path / "torn"
    assert log.torn.read_bytes() == tail


async def test_the_next_line_stands_alone_after_a_torn_tail(open_log: Any, tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").write_bytes(b"a\nhalf")
    await open_log().append(b"b\n")
    assert (tmp_path / "rollouts.jsonl").read_bytes() == b"a\nb\n"


def test_every_torn_tail_is_kept(open_log: Any, tmp_path: Path) -> None:
    for tail in (b"one", b"two", b"three"):
        with (tmp_path / "rollouts.jsonl").open("ab") as file:
            file.write(tail)
        open_log()
    kept = sorted(path.read_bytes() for path in (tmp_path / "torn").iterdir())
    assert kept == [b"one", b"three", b"two"]


def test_torn_tails_of_two_logs_do_not_meet(open_log: Any, tmp_path: Path) -> None:
    for name in ("rollouts.jsonl", "scores.jsonl"):
        (tmp_path / name).write_bytes(name.encode())
    torn = [open_log(name=name).torn for name in ("rollouts.jsonl", "scores.jsonl")]
    assert [path.read_bytes() for path in torn] == [b"rollouts.jsonl", b"scores.jsonl"]


def test_a_whole_log_has_no_torn_tail(open_log: Any, tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").write_bytes(b"a\nb\n")
    assert open_log().torn is None
    assert not (tmp_path / "torn").exists()


# -- a disk that fails


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
@pytest.mark.parametrize("room", [0, 1, 7, 11])
async def test_a_write_that_fails_cuts_back_to_the_last_committed_byte(
    open_log: Any, room: int, code: int
) -> None:
    disk = FullDisk(1000, code=code)
    log = open_log(disk)
    await log.append(b"committed\n")
    disk.room = room
    with pytest.raises(StoreError) as failure:
        await log.append(b"a line that does not fit\n")
    assert log.path.read_bytes() == b"committed\n"
    assert os.strerror(code) in str(failure.value)
    assert str(log.path) in str(failure.value)
    assert "run the same command again" in str(failure.value)


async def test_a_short_write_is_carried_on(open_log: Any) -> None:
    log = open_log(FullDisk(1000, at_once=3))
    await log.append(b"in pieces of three\n")
    assert log.path.read_bytes() == b"in pieces of three\n"


async def test_a_disk_that_takes_nothing_and_says_nothing_stops_the_log(open_log: Any) -> None:
    class Deaf(QuickDisk):
        def write(self, descriptor: int, data: memoryview) -> int:
            return 0

    with pytest.raises(StoreError, match="cannot write"):
        await asyncio.wait_for(open_log(Deaf()).append(b"a\n"), 30)


async def test_after_a_failed_write_the_log_takes_no_more(open_log: Any) -> None:
    disk = FullDisk(3)
    log = open_log(disk)
    with pytest.raises(StoreError):
        await log.append(b"too long\n")
    disk.room = 1000
    with pytest.raises(StoreError):
        await log.append(b"ok\n")
    with pytest.raises(StoreError):
        log.append_now(b"ok\n")
    assert log.path.read_bytes() == b""


async def test_everyone_who_waits_learns_of_the_failure(open_log: Any) -> None:
    log = open_log(FullDisk(6))
    results = await asyncio.gather(*(log.append(b"%d\n" % n) for n in range(50)), return_exceptions=True)
    kept = log.path.read_bytes()
    assert kept == b"".join(b"%d\n" % n for n, result in enumerate(results) if result is None)
    assert sum(isinstance(result, StoreError) for result in results) >= 47


async def test_a_tail_that_could_not_be_cut_back_is_torn_for_the_next_writer(open_log: Any) -> None:
    disk = FullDisk(1000, truncate_fails=True)
    log = open_log(disk)
    await log.append(b"committed\n")
    disk.room = 4
    with pytest.raises(StoreError):
        await log.append(b"lost line\n")
    again = open_log()
    assert again.path.read_bytes() == b"committed\n"
    assert again.torn.read_bytes() == b"lost"


async def test_a_failed_fsync_is_never_asked_again(open_log: Any) -> None:
    disk = SickDisk(sick_from=3)
    log = open_log(disk)
    while disk.syncs < 2:
        await log.append(b"good\n")
    with pytest.raises(StoreError, match="fsync"):
        await log.append(b"bad\n")
    for _ in range(3):
        with pytest.raises(StoreError):
            await log.append(b"later\n")
    assert disk.syncs == 3


async def test_what_a_failed_fsync_was_for_does_not_count_later(open_log: Any) -> None:
    disk = SickDisk(sick_from=99)
    log = open_log(disk)
    await log.append(b"good\n")
    disk.sick_from = disk.syncs + 1
    with pytest.raises(StoreError):
        await log.append(b"perhaps only in memory\n")
    assert open_log().path.read_bytes() == b"good\n"


def test_a_log_that_cannot_be_opened_says_where(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").mkdir()
    with pytest.raises(StoreError, match=r"cannot open .*rollouts\.jsonl"):
        Log(tmp_path / "rollouts.jsonl", QuickDisk())


def test_a_log_that_cannot_be_opened_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").write_bytes(b"torn")
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        with pytest.raises(StoreError):
            Log(tmp_path / "rollouts.jsonl", SickDisk(sick_from=1))
    assert len(os.listdir("/dev/fd")) == before
