"""The log: one JSON line per attempt, appended whole, never rewritten.

A line is durable once `append` returns. Readers see only whole lines: a torn tail is cut off by the next writer,
which keeps the cut bytes under torn/ and says so.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from windrow.errors import StoreError
from windrow.util.disk import Disk, folder_mode, write_all

TAIL_CHUNK = 64 * 1024
TORN = "torn"

Waiter = asyncio.Future[None]
Whole = Callable[[int], int]  # of an open file: how many of its bytes are whole


class Log:
    """The one writer of a file; the caller holds the lock that makes it so."""

    def __init__(self, path: Path, disk: Disk, whole: Whole | None = None) -> None:
        """`whole` says how much of a file is to be kept; up to its last newline, unless given."""
        self.path = path
        self.torn: Path | None = None
        self._disk = disk
        self._whole = whole or whole_bytes
        try:
            self._descriptor = self._opened()
        except OSError as problem:
            raise StoreError(f"cannot open {path} for writing: {problem.strerror}") from None
        self._committed = os.fstat(self._descriptor).st_size
        self._pending: list[tuple[bytes, Waiter]] = []
        self._flushing = False
        self._failure: StoreError | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="windrow-log")

    async def append(self, line: bytes) -> None:
        """Return when `line` (one or more whole lines) is on disk. Lines of concurrent callers share one fsync."""
        if self._failure is not None:
            raise self._failure
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        self._pending.append((line, waiter))
        if not self._flushing:
            self._flush(loop)
        await waiter

    def append_now(self, data: bytes) -> None:
        """The same, blocking: for what is written before the engine runs."""
        if self._failure is not None:
            raise self._failure
        self._write([data])

    def close(self) -> None:
        """Close the file once everything that was given to `append` is written."""
        self._thread.shutdown(wait=True)
        waiting, self._pending = self._pending, []
        problem: BaseException | None = self._failure
        try:
            if waiting and problem is None:
                self._write([line for line, _ in waiting])
        except StoreError as failure:
            problem = failure
        finally:
            os.close(self._descriptor)
            _tell([waiter for _, waiter in waiting], problem)

    def _opened(self) -> int:
        descriptor = self._disk.open(self.path)
        try:
            self.torn = set_torn_tail_aside(self.path, descriptor, self._disk, self._whole)
            self._disk.sync(descriptor)  # whole lines that a killed writer left may be in memory only
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._pending = self._pending, []
        self._flushing = True
        written = loop.run_in_executor(self._thread, self._write, [line for line, _ in batch])
        written.add_done_callback(partial(self._flushed, [waiter for _, waiter in batch]))

    def _flushed(self, waiters: list[Waiter], written: asyncio.Future[None]) -> None:
        self._flushing = False
        problem = written.exception()
        if problem is not None:
            waiters += [waiter for _, waiter in self._pending]
            self._pending = []
        _tell(waiters, problem)
        if self._pending:
            self._flush(written.get_loop())

    def _write(self, lines: list[bytes]) -> None:
        """Append and sync. Either all of `lines` are durable, or the log is as it was and takes no more."""
        data = b"".join(lines)
        try:
            write_all(self._disk, self._descriptor, data)
        except OSError as problem:
            self._failure = StoreError(
                f"cannot write {self.path}: {problem.strerror}. What was collected before is safe; free some "
                f"space and run the same command again"
            )
            self._cut_back(sync=True)
            raise self._failure from None
        try:
            self._disk.sync(self._descriptor)
        except OSError as problem:
            # After a failed fsync the kernel may have dropped the pages: asking again would lie.
            self._failure = StoreError(
                f"the disk did not take what was written to {self.path} (fsync: {problem.strerror}). Check the "
                f"disk, then run the same command again"
            )
            self._cut_back(sync=False)
            raise self._failure from None
        self._committed += len(data)

    def _cut_back(self, *, sync: bool) -> None:
        try:
            self._disk.truncate(self._descriptor, self._committed)
            if sync:
                self._disk.sync(self._descriptor)
        except OSError:
            return  # the next writer finds a torn tail and sets it aside


def _tell(waiters: list[Waiter], problem: BaseException | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if problem is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(problem)


def set_torn_tail_aside(path: Path, descriptor: int, disk: Disk, whole: Whole) -> Path | None:
    """Move what follows the whole part to torn/ and cut it off; the place it went to, or None if there is none."""
    size = os.fstat(descriptor).st_size
    keep = whole(descriptor)
    if keep == size:
        return None
    torn = torn_name(path, disk)
    disk.replace(torn, os.pread(descriptor, size - keep, keep))
    disk.truncate(descriptor, keep)
    disk.sync(descriptor)
    return torn


def torn_name(path: Path, disk: Disk) -> Path:
    """A free name below torn/ for what is cut out of a file; the folder is made if need be."""
    folder = path.parent / TORN
    if not folder.exists():
        folder.mkdir(folder_mode(path.parent))
        disk.sync_directory(path.parent)
    number = 1
    while (torn := folder / f"{path.name}.{number}").exists():
        number += 1
    return torn


def whole_bytes(descriptor: int, end: int | None = None) -> int:
    """The length of the file, or of its first `end` bytes, up to and with the last newline."""
    end = os.fstat(descriptor).st_size if end is None else end
    while end > 0:
        start = max(0, end - TAIL_CHUNK)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
