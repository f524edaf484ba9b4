"""The runs that are merged, as far as they were written when the merge began."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from windrow.errors import StoreError, UsageError
from windrow.store.line_heads import NOT_A_LINE, whole_episodes
from windrow.store.lock import holder_of
from windrow.store.log import whole_bytes
from windrow.store.merging.conflicts import CONFLICTS, decode_conflict
from windrow.store.merging.versions import Spot, hashed
from windrow.store.reader import READ_BYTES, segments
from windrow.store.run_directory import TASKS, Manifest, read_manifest
from windrow.util.directory_swap import is_unfinished

MOST_OPEN = 100
BLANK = b" \t\r\n"


class Line(NamedTuple):
    """A whole line of an input, without what separates it from the next, and where it stands."""

    number: int
    offset: int
    size: int
    text: bytes


class Segment(msgspec.Struct, frozen=True):
    path: Path
    size: int  # up to its last whole line, or episode
    tail: int  # what follows that


class Input:
    """A run that is read. What is written to it from now on is not seen."""

    def __init__(self, path: Path, *, own: bool = False) -> None:
        """`own`: this process writes it."""
        if not path.is_dir():
            raise UsageError(f"{path} is not a run directory")
        if is_unfinished(path):
            raise UsageError(
                f"{path}: a merge into it was cut short; finish it with: windrow merge {path} -o {path}"
            )
        self.path = path
        self.own = own
        self.manifest: Manifest = read_manifest(path)
        self.holder = None if own else _holder(path)
        # A verdict is written after what it is of, and a rollout after its task: read first, each finds its object.
        self.scores = self._measured("scores")
        self.judgements = self._measured("judgements")
        self.conflicts = self._measured(CONFLICTS.removesuffix(".jsonl"))
        self.rollouts = self._measured("rollouts", whole_episodes)
        self.tasks = self._measured(TASKS.removesuffix(".jsonl"))

    @property
    def segments(self) -> list[Segment]:
        return [*self.rollouts, *self.tasks, *self.judgements, *self.scores, *self.conflicts]

    def _measured(self, name: str, whole: Callable[[int], int] = whole_bytes) -> list[Segment]:
        found = []
        for segment in segments(self.path, name):
            with (self.path / segment).open("rb") as file:
                size = whole(file.fileno())
                tail = os.fstat(file.fileno()).st_size - size
            found.append(Segment(self.path / segment, size, tail))
        return found


def lines_of(segment: Segment) -> Iterator[Line]:
    """Every whole line that says something."""
    offset = 0
    with segment.path.open("rb", buffering=READ_BYTES) as file:
        for number, data in enumerate(file, 1):
            if offset >= segment.size:
                return
            text = data.strip(BLANK)
            if text:
                yield Line(number, offset, len(data), text)
            offset += len(data)


class Files:
    """The files that lines are copied from, by number."""

    def __init__(self) -> None:
        self._paths: list[Path] = []
        self._open: dict[int, int] = {}

    def add(self, path: Path) -> int:
        self._paths.append(path)
        return len(self._paths) - 1

    def lines(self, spot: Spot, digest: bytes) -> list[bytes]:
        """The lines that stand there, as `Line.text` has them. StoreError if they are not what they were."""
        path = self._paths[spot.file]
        try:
            if spot.file not in self._open:
                if len(self._open) >= MOST_OPEN:
                    self.close()
                self._open[spot.file] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self._open[spot.file], spot.size, spot.offset)
        except OSError as problem:
            raise StoreError(f"cannot read {path}: {problem.strerror}") from None
        try:
            found = _texts(path, data)
        except NOT_A_LINE:
            found = []
        if hashed(*found) != digest:
            raise StoreError(f"{path} was changed while it was merged; merge again")
        return found

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
    """Who is writing the run."""
    return next((holder for file in sorted(path.glob("lock*")) if (holder := holder_of(file))), None)
