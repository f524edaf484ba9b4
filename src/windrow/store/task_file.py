"""tasks.jsonl: the tasks of a run, one per line, read back by offset.

The file only grows: a larger limit or a longer source appends new tasks.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from windrow.errors import StoreError
from windrow.identity import digest
from windrow.records import Json, Task, encode
from windrow.store.index_files import read_derived, worth_keeping, write_derived
from windrow.store.line_checksums import with_checksum
from windrow.store.log import Log
from windrow.tasks.plan import TaskList
from windrow.util.disk import Disk
from windrow.util.hash_index import HashIndex

TASKS = "tasks.jsonl"
WRITE_BYTES = 1 << 20
INDEX = "tasks.index"


class _Adopted(msgspec.Struct, frozen=True, array_like=True):
    """The offsets of the tasks of a call in a tasks.jsonl of this content."""

    content: str
    tasks: str
    offsets: bytes
    bad_lines: list[int]

    def __post_init__(self) -> None:
        if len(self.offsets) % array("Q").itemsize:
            raise ValueError("an offset is cut off")


class TaskLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of tasks.jsonl: `occurrence` distinguishes equal rows."""

    key: str
    digest: str
    occurrence: int
    source: str
    split: str | None
    index: int
    tags: tuple[str, ...]
    data: dict[str, Json]

    def task(self) -> Task:
        return Task(
            key=self.key,
            digest=self.digest,
            source=self.source,
            split=self.split,
            index=self.index,
            tags=self.tags,
            data=self.data,
        )


class KnownTask(msgspec.Struct, gc=False):
    """A task's line with its row still encoded."""

    key: str
    digest: str
    occurrence: Annotated[int, msgspec.Meta(ge=0)]
    source: str
    split: str | None
    index: int
    tags: tuple[str, ...]
    data: msgspec.Raw


_decode_line = msgspec.json.Decoder(TaskLine).decode
decode_known = msgspec.json.Decoder(KnownTask).decode


class TaskFile:
    """The selected tasks of this call, by position, each read from the file when it is asked for."""

    def __init__(self, log: Log, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self.bad_lines: list[int] = []
        self._log = log
        self._file = path.open("rb")
        self._offsets = array("Q")
        self._tasks: TaskList | None = None
        self._content_at: tuple[int, str] = (0, hashlib.sha256().hexdigest())  # by the size that the file had

    def __len__(self) -> int:
        return len(self._offsets)

    def identity(self, position: int) -> tuple[str, int]:
        assert self._tasks is not None
        return self._tasks.identity(position)

    def source(self, position: int) -> str:
        assert self._tasks is not None
        return self._tasks.source(position)

    def task(self, position: int) -> Task:
        """Return the task at a position. StoreError: another task stands at its offset; no task is played under the
        name of another.
        """
        try:
            self._file.seek(self._offsets[position])
            line = _decode_line(self._file.readline())
        except (msgspec.DecodeError, ValueError, RecursionError):
            line = None
        if line is None or (line.digest, line.occurrence) != self.identity(position):
            raise StoreError(
                f"{self.path} does not hold the task that index/{INDEX} says it does; delete that and run the command again"
            )
        if digest(line.data) != line.digest:
            raise StoreError(
                f"{self.path}: the row of the task {line.key!r} is not the one that its digest names: somebody has changed the "
                f"file. Restore it, or collect into another --out"
            )
        return line.task()

    def digest(self) -> str:
        assert self._tasks is not None
        return self._tasks.digest()

    def adopt(self, tasks: TaskList) -> None:
        """Take these tasks as the tasks of this call, in this order; append those that the file lacks.

        Their offsets are stored in an index, which is trusted while the file holds the same bytes.
        """
        self._tasks = tasks
        selected = tasks.digest()
        stored = read_derived(self.path.parent, INDEX, _Adopted)
        if stored is not None and stored[0].tasks == selected and stored[0].content == self.content():
            offsets = array("Q", stored[0].offsets)
            if len(offsets) == len(tasks):
                self._offsets, self.bad_lines = offsets, stored[0].bad_lines
                return
        self._find_or_append(tasks)
        if worth_keeping(self.path.stat().st_size):
            adopted = _Adopted(self.content(), selected, self._offsets.tobytes(), self.bad_lines)
            write_derived(self.path.parent, INDEX, adopted, self._disk)

    def content(self) -> str:
        """The digest of the file, which only grows while it is open here."""
        size = self.path.stat().st_size
        if size != self._content_at[0]:
            with self.path.open("rb") as file:
                self._content_at = size, hashlib.file_digest(file, "sha256").hexdigest()
        return self._content_at[1]

    def _find_or_append(self, tasks: TaskList) -> None:
        offsets = self._recorded_offsets()
        end = self.path.stat().st_size
        fresh = bytearray()
        for position in range(len(tasks)):
            row_digest, occurrence = tasks.identity(position)
            identity = (tasks.source(position), row_digest, occurrence)
            offset = offsets.get(identity)
            if offset is None:
                line = with_checksum(encode(_line(tasks.task(position), occurrence))) + b"\n"
                fresh += line
                offset = end
                offsets.set(identity, offset)
                end += len(line)
                if len(fresh) > WRITE_BYTES:
                    self._log.append_now(bytes(fresh))
                    fresh.clear()
            self._offsets.append(offset)
        if fresh:
            self._log.append_now(bytes(fresh))

    def close(self) -> None:
        self._file.close()

    def _recorded_offsets(self) -> HashIndex:
        """Return the offset of each task. A bad line is counted and left alone; its task is appended again."""
        offsets = HashIndex()
        for number, (offset, line) in enumerate(read_known(self.path), 1):
            if line is None:
                self.bad_lines.append(number)
            else:
                offsets.set((line.source, line.digest, line.occurrence), offset)
        return offsets


class KnownTasks:
    """All tasks of a file, by position, each read from it when it is asked for."""

    def __init__(self, path: Path) -> None:
        lines = read_known(path) if path.exists() else ()
        self._offsets = array("Q", (offset for offset, line in lines if line is not None))
        self._path = path
        self._file = path.open("rb") if self._offsets else None
        self._latest: tuple[int, KnownTask] | None = None

    def __len__(self) -> int:
        return len(self._offsets)

    def identity(self, position: int) -> tuple[str, int]:
        line = self._line(position)
        return line.digest, line.occurrence

    def source(self, position: int) -> str:
        return self._line(position).source

    def task(self, position: int) -> Task:
        return read_task(self._path, self._offsets[position])

    def digest(self) -> str:
        """Of all lines, whatever they hold."""
        if self._file is None:
            return ""
        self._file.seek(0)
        return hashlib.file_digest(self._file, "sha256").hexdigest()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _line(self, position: int) -> KnownTask:
        if self._latest is None or self._latest[0] != position:
            assert self._file is not None
            self._file.seek(self._offsets[position])
            self._latest = position, decode_known(self._file.readline())
        return self._latest[1]


def read_tasks(path: Path) -> dict[str, int]:
    """Return the offset of each task's line by digest, to read back rows that are too large for a rollout."""
    offsets: dict[str, int] = {}
    for offset, line in read_known(path):
        if line is not None:
            offsets.setdefault(line.digest, offset)
    return offsets


def count_tasks(path: Path) -> int:
    return sum(line is not None for _, line in read_known(path)) if path.exists() else 0


def read_task(path: Path, offset: int) -> Task:
    with path.open("rb") as file:
        file.seek(offset)
        return _decode_line(file.readline()).task()


def tasks_in_order(path: Path) -> Iterator[Task]:
    """Yield every task by its index; lines that hold no task are skipped."""
    places = sorted((line.index, offset) for offset, line in read_known(path) if line is not None)
    with path.open("rb") as file:
        for _, offset in places:
            file.seek(offset)
            yield _decode_line(file.readline()).task()


def read_known(path: Path) -> Iterator[tuple[int, KnownTask | None]]:
    """Yield every line with its offset; None for a line that holds no task."""
    offset = 0
    with path.open("rb") as file:
        for data in file:
            try:
                data.decode()  # a row that is not read is not looked at for its text
                line = decode_known(data)
                yield offset, line if bytes(line.data).startswith(b"{") else None
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                yield offset, None
            offset += len(data)


def _line(task: Task, occurrence: int) -> TaskLine:
    return TaskLine(
        key=task.key,
        digest=task.digest,
        occurrence=occurrence,
        source=task.source,
        split=task.split,
        index=task.index,
        tags=task.tags,
        data=task.data or {},
    )
