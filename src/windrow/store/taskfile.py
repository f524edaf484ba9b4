"""tasks.jsonl: the tasks of a run, one a line, read back by offset.

It only grows: a larger limit or a longer source appends what is new.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import msgspec

from windrow.errors import StoreError
from windrow.records import Json, Task, encode
from windrow.store.log import Log
from windrow.tasks.identities import Identities
from windrow.tasks.plan import TaskList

WRITE_BYTES = 1 << 20


class TaskLine(msgspec.Struct, frozen=True, kw_only=True):
    """A task as tasks.jsonl has it: `occurrence` tells rows apart that are alike."""

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


class _Identity(msgspec.Struct):
    digest: str
    occurrence: int


_decode_line = msgspec.json.Decoder(TaskLine).decode
_decode_identity = msgspec.json.Decoder(_Identity).decode


class TaskFile:
    """The selected tasks of this call, by position, each read from the file when asked for."""

    def __init__(self, log: Log, path: Path) -> None:
        self._log = log
        self._path = path
        self._file = path.open("rb")
        self._offsets = array("Q")
        self._identities = Identities()

    def __len__(self) -> int:
        return len(self._offsets)

    def identity(self, position: int) -> tuple[str, int]:
        return self._identities[position]

    def task(self, position: int) -> Task:
        self._file.seek(self._offsets[position])
        return _decode_line(self._file.readline()).task()

    def adopt(self, tasks: TaskList) -> None:
        """Take these tasks as this call's, in this order; those the file does not hold yet are appended."""
        known = self._known()
        end = self._path.stat().st_size
        fresh = bytearray()
        for position in range(len(tasks)):
            identity = tasks.identity(position)
            offset = known.get(identity)
            if offset is None:
                line = encode(_line(tasks.task(position), identity[1])) + b"\n"
                fresh += line
                offset = known[identity] = end
                end += len(line)
                if len(fresh) > WRITE_BYTES:
                    self._log.append_now(bytes(fresh))
                    fresh.clear()
            self._offsets.append(offset)
            self._identities.append(*identity)
        if fresh:
            self._log.append_now(bytes(fresh))

    def close(self) -> None:
        self._file.close()

    def _known(self) -> dict[tuple[str, int], int]:
        known: dict[tuple[str, int], int] = {}
        offset = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    identity = _decode_identity(line)
                except msgspec.DecodeError:
                    raise StoreError(
                        f"{self._path}:{number} is damaged; move the line away and run the same command again"
                    ) from None
                known[identity.digest, identity.occurrence] = offset
                offset += len(line)
        return known


def read_tasks(path: Path) -> dict[str, int]:
    """Where each task's line begins, by digest: for reading back the rows that are too large for a rollout."""
    offsets: dict[str, int] = {}
    offset = 0
    with path.open("rb") as file:
        for line in file:
            try:
                offsets.setdefault(_decode_identity(line).digest, offset)
            except msgspec.DecodeError:
                pass
            offset += len(line)
    return offsets


def read_task(path: Path, offset: int) -> Task:
    with path.open("rb") as file:
        file.seek(offset)
        return _decode_line(file.readline()).task()


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
