"""Disks for tests: each takes the place of the store's file layer, `windrow.util.disk.Disk`."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from windrow.util.disk import Disk


class QuickDisk(Disk):
    """A disk that syncs nothing: for tests in which no power fails."""

    def sync(self, descriptor: int) -> None:
        pass


class CountingDisk(QuickDisk):
    """Counts the syncs of files (not of directories). Between `hold` and `release` a sync does not end."""

    def __init__(self) -> None:
        self.syncs = 0
        self._held = threading.Event()
        self._released = threading.Event()
        self._released.set()

    def hold(self) -> None:
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    def wait_for_sync(self) -> None:
        """Return once a sync is being held up."""
        assert self._held.wait(60)

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        if not self._released.is_set():
            self._held.set()
            assert self._released.wait(60)

    def sync_directory(self, path: Path) -> None:
        pass


class FullDisk(QuickDisk):
    """A disk with room for `room` more bytes, written `at_once` at most; `truncate_fails` makes it worse."""

    def __init__(
        self, room: int, *, at_once: int | None = None, code: int = errno.ENOSPC, truncate_fails: bool = False
    ) -> None:
        self.room = room
        self._at_once = at_once
        self._code = code
        self._truncate_fails = truncate_fails

    def write(self, descriptor: int, data: memoryview) -> int:
        fits = min(len(data), self.room, self._at_once or len(data))
        if not fits:
            raise OSError(self._code, os.strerror(self._code))
        self.room -= fits
        return super().write(descriptor, data[:fits])

    def truncate(self, descriptor: int, size: int) -> None:
        if self._truncate_fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(descriptor, size)


class SickDisk(CountingDisk):
    """A disk that fails every sync of a file from number `sick_from` on (counted from 1)."""

    def __init__(self, sick_from: int) -> None:
        super().__init__()
        self.sick_from = sick_from

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        if self.syncs >= self.sick_from:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class Crash(OSError):
    """The process, or the machine, stopped here."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "crashed")


class CrashDisk(Disk):
    """A disk that remembers what is durable, and crashes at call number `crash_at`.

    Durable is of a file what it held when it was last synced, of a directory the names it had when it was last synced.
    What stood under `root` at the beginning is durable. After a crash every call fails, until `survivors` says what a
    power cut leaves, or `restart` carries on with what a killed process leaves: everything, in the system's memory.
    """

    def __init__(self, root: Path, crash_at: int | None = None) -> None:
        self.root = root
        self.crash_at = crash_at
        self.calls = 0
        self.crashed = False
        self._live: dict[int, bytearray] = {}
        self._durable: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._held: dict[int, int] = {}  # descriptors, so that no inode number is given out a second time
        self._turn = threading.Lock()
        for path in (root, *root.rglob("*")):
            if path.is_dir():
                self._remember_names(path)
            else:
                self._remember_bytes(path)

    def restart(self, crash_at: int | None = None) -> None:
        self.calls, self.crash_at, self.crashed = 0, crash_at, False

    def close(self) -> None:
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held = {}

    # -- the calls of a disk

    def open(self, path: Path) -> int:
        self._step()
        return super().open(path)

    def write(self, descriptor: int, data: memoryview) -> int:
        live = self._live[self._hold(descriptor)]
        try:
            self._step()
        except Crash:
            if self.calls == self.crash_at:
                live += data[: super().write(descriptor, data[: len(data) // 2])]
            raise
        written = super().write(descriptor, data)
        live += data[:written]
        return written

    def sync(self, descriptor: int) -> None:
        self._step()
        inode = self._hold(descriptor)
        self._durable[inode] = bytes(self._live[inode])

    def truncate(self, descriptor: int, size: int) -> None:
        self._step()
        super().truncate(descriptor, size)
        del self._live[self._hold(descriptor)][size:]

    def sync_directory(self, path: Path) -> None:
        self._step()
        self._remember_names(path)

    def replace(self, path: Path, data: bytes | Iterable[bytes]) -> None:
        self._step()
        super().replace(path, data)

    def rename(self, old: Path, new: Path) -> None:
        self._step()
        super().rename(old, new)

    def link(self, old: Path, new: Path) -> None:
        self._step()
        super().link(old, new)

    def _step(self) -> None:
        with self._turn:
            self.calls += 1
            if self.crashed or self.calls == self.crash_at:
                self.crashed = True
                raise Crash

    def _hold(self, descriptor: int) -> int:
        """Keep the file: its inode number, and what it holds. All writes append."""
        status = os.fstat(descriptor)
        if status.st_ino not in self._held:
            self._held[status.st_ino] = os.dup(descriptor)
            before = os.pread(descriptor, status.st_size, 0) if status.st_size else b""
            self._live[status.st_ino] = bytearray(before)
        del self._live[status.st_ino][status.st_size :]  # emptied when it was opened
        return status.st_ino

    def _remember_names(self, path: Path) -> None:
        inode = path.stat().st_ino
        self._names[inode] = _names(path)
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY)

    def _remember_bytes(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        inode = self._hold(descriptor)
        self._durable[inode] = bytes(self._live[inode])
        os.close(descriptor)

    # -- the power cut

    def survivors(self, target: Path, chance: random.Random | None = None) -> Path:
        """Write to `target` what a power cut leaves now. With `chance`, some of what was never synced is left too."""
        live = {path.stat().st_ino: path for path in (self.root, *self.root.rglob("*"))}
        self._restore(self.root.stat().st_ino, target, live, chance)
        return target

    def _restore(self, inode: int, target: Path, live: dict[int, Path], chance: random.Random | None) -> None:
        target.mkdir()
        for name, child in self._surviving_names(inode, live, chance):
            if child in self._names or (child in live and live[child].is_dir()):
                self._restore(child, target / name, live, chance)
            else:
                (target / name).write_bytes(self._surviving_bytes(child, chance))

    def _surviving_names(
        self, inode: int, live: dict[int, Path], chance: random.Random | None
    ) -> Iterator[tuple[str, int]]:
        durable = self._names.get(inode, {})
        current = _names(live[inode]) if inode in live else {}
        for name in sorted({*durable, *current}):
            choices = [durable.get(name), current.get(name)]
            child = chance.choice(choices) if chance else choices[0]
            if child is not None:
                yield name, child

    def _surviving_bytes(self, inode: int, chance: random.Random | None) -> bytes:
        durable = self._durable.get(inode, b"")
        live = bytes(self._live.get(inode, b""))
        if chance is None:
            return durable
        if not live.startswith(durable):
            return chance.choice([durable, live])
        return live[: chance.randint(len(durable), len(live))]


def _names(path: Path) -> dict[str, int]:
    return {entry.name: entry.inode() for entry in os.scandir(path)}
