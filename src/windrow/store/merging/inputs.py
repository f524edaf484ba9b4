"""The inputs of a merge: runs, up to the last whole line that they had when the merge began."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from windrow.errors import StoreError, UsageError
from windrow.store.line_heads import NOT_A_LINE, whole_episodes
from windrow.store.lock import holder_of, lock_files
from windrow.store.log import whole_bytes
from windrow.store.manifest import Manifest, read_manifest
from windrow.store.merging.conflicts import CONFLICTS, decode_conflict
from windrow.store.merging.versions import ByteRange, digest_of
from windrow.store.reader import READ_BYTES
from windrow.store.segments import segments
from windrow.store.signing import is_own, signed_tasks, tasks_digest
from windrow.store.task_file import TASKS
from windrow.util.directory_swap import standing

MOST_OPEN = 100
BLANK = b" \t\r\n"


class InputLine(NamedTuple):
    """A whole line of an input, without the whitespace around it, and its position in the file."""

    number: int
    offset: int
    size: int
    text: bytes


class Segment(msgspec.Struct, frozen=True):
    """One file of an input's log."""

    path: Path
    size: int  # bytes up to the last whole line, or episode
    tail: int  # bytes after that


class Input:
    """A run that is merged. Lines that are appended from now on are not read."""

    def __init__(self, path: Path, *, is_target: bool = False) -> None:
        """`is_target`: the run that is merged into, which this process has locked."""
        if not path.is_dir():
            raise UsageError(f"{path} is not a run directory")
        self.path = path
        self.is_target = is_target
        self._folder = standing(path)
        self.manifest: Manifest = read_manifest(self._folder)
        self.is_own = is_own(self._folder, self.manifest)
        self.holder = None if is_target else _holder(path)
        # A verdict is written after its rollout, and a rollout after its task: measured first, each finds its object.
        self.scores = self._measured("scores")
        self.judgements = self._measured("judgements")
        self.conflicts = self._measured(CONFLICTS.removesuffix(".jsonl"))
        self.rollouts = self._measured("rollouts", whole_episodes)
        self.tasks = self._measured(TASKS.removesuffix(".jsonl"))

    @property
    def has_own_tasks(self) -> bool:
        """Whether this user's commands wrote every row in tasks.jsonl."""
        return self.is_own and signed_tasks(self.manifest) == tasks_digest(self._folder)

    @property
    def segments(self) -> list[Segment]:
        return [*self.rollouts, *self.tasks, *self.judgements, *self.scores, *self.conflicts]

    def _measured(self, name: str, whole: Callable[[int], int] = whole_bytes) -> list[Segment]:
        measured = []
        for segment in segments(self._folder, name):
            with (self._folder / segment).open("rb") as file:
                size = whole(file.fileno())
                tail = os.fstat(file.fileno()).st_size - size
            measured.append(Segment(self._folder / segment, size, tail))
        return measured


def lines_of(segment: Segment) -> Iterator[InputLine]:
    """Every whole line that is not blank."""
    offset = 0
    with segment.path.open("rb", buffering=READ_BYTES) as file:
        for number, data in enumerate(file, 1):
            if offset >= segment.size:
                return
            text = data.strip(BLANK)
            if text:
                yield InputLine(number, offset, len(data), text)
            offset += len(data)


class OpenFiles:
    """The files that lines are copied from, by number."""

    def __init__(self) -> None:
        self._paths: list[Path] = []
        self._open: dict[int, int] = {}

    def add(self, path: Path) -> int:
        self._paths.append(path)
        return len(self._paths) - 1

    def lines(self, byte_range: ByteRange, digest: bytes) -> list[bytes]:
        """The lines in that range, as in `InputLine.text`. StoreError if they have changed since they were scanned."""
        path = self._paths[byte_range.file]
        try:
            if byte_range.file not in self._open:
                if len(self._open) >= MOST_OPEN:
                    self.close()
                self._open[byte_range.file] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self._open[byte_range.file], byte_range.size, byte_range.offset)
        except OSError as problem:
            raise StoreError(f"cannot read {path}: {problem.strerror}") from None
        try:
            lines = _texts(path, data)
        except NOT_A_LINE:
            lines = []
        if digest_of(lines) != digest:
            raise StoreError(f"{path} was changed while it was merged; merge again")
        return lines

    def path(self, number: int) -> Path:
        return self._paths[number]

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open = {}


def _texts(path: Path, data: bytes) -> list[bytes]:
    if path.name == CONFLICTS:
        return [bytes(line) for line in decode_conflict(data).lines]
    if data.find(b"\n") == len(data) - 1:
        return [data.strip(BLANK)]
    return [text for line in data.split(b"\n") if (text := line.strip(BLANK))]


def _holder(path: Path) -> str | None:
    """The process that is writing the run, or None."""
    return next((holder for file in lock_files(path) if (holder := holder_of(file))), None)
