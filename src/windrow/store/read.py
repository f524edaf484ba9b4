"""Reading a run: the union of its segments, bad lines skipped and counted, final attempts, gradings folded in.

Reading needs no lock and changes nothing; it may go on while a run is being collected.
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from windrow.errors import StoreError, UsageError
from windrow.records import (
    SCHEMA_VERSION,
    AttemptId,
    Grading,
    Rollout,
    Task,
    decode_grading,
    decode_rollout,
    is_done,
)
from windrow.store.directory import TASKS, Manifest, read_manifest, whole_sizes
from windrow.store.fold import expected_scorers, fold
from windrow.store.taskfile import read_task, read_tasks

T = TypeVar("T")


class _Error(msgspec.Struct):
    retryable: bool
    owner: str = "infra"


class _Task(msgspec.Struct):
    index: int


class Head(msgspec.Struct):
    """The part of a rollout's line that resuming and ordering need; the rest of the line is not decoded."""

    id: str
    attempt: int
    group: str
    sample: int
    status: str
    reason: str | None
    grade: str
    grading: str | None
    error: _Error | None
    task: _Task

    @property
    def done(self) -> bool:
        return is_done(self.status, self.reason)

    @property
    def rank(self) -> tuple[bool, int]:
        return _rank(self.status, self.attempt)


class Place(msgspec.Struct, frozen=True, order=True):
    """Where a line stands."""

    segment: str
    offset: int


class BadLine(msgspec.Struct, frozen=True):
    segment: str
    number: int
    problem: str


class _Version(msgspec.Struct):
    v: int = SCHEMA_VERSION


_decode_head = msgspec.json.Decoder(Head).decode
_decode_version = msgspec.json.Decoder(_Version).decode
_OWN_VERSION = b'{"v":%d,' % SCHEMA_VERSION  # how every line begins that this version writes


def _check_version(line: bytes) -> None:
    found = _decode_version(line).v
    if found > SCHEMA_VERSION:
        raise msgspec.ValidationError(f"written by a newer windrow (schema {found}): upgrade to read it")


class RunReader:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise UsageError(f"{path} is not a run directory")
        self.manifest: Manifest = read_manifest(self.path)
        self.bad_lines: list[BadLine] = []
        self.attempts = 0  # lines of the log, counted by `finals`
        self._task_offsets: dict[str, int] | None = None
        self._open: dict[str, IO[bytes]] = {}

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()
        self._open = {}

    def lines(
        self, decode: Callable[[bytes], T], *, name: str = "rollouts", sizes: Mapping[str, int] | None = None
    ) -> Iterator[tuple[Place, T]]:
        """Every good line of the segments, decoded as far as `decode` goes; with `sizes`, up to those bytes."""
        bad: list[BadLine] = []
        for segment in segments(self.path, name):
            end = None if sizes is None else sizes.get(segment, 0)
            offset = 0
            with (self.path / segment).open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n") or (end is not None and offset >= end):
                        break
                    try:
                        if not line.startswith(_OWN_VERSION):
                            _check_version(line)
                        if not line.isascii():
                            line.decode()  # a partial decode does not look at the text it skips
                        yield Place(segment, offset), decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
                        bad.append(BadLine(segment, number, str(problem)))
                    offset += len(line)
        known = {(line.segment, line.number) for line in self.bad_lines}
        self.bad_lines += [line for line in bad if (line.segment, line.number) not in known]

    def heads(self, sizes: Mapping[str, int] | None = None) -> Iterator[tuple[Place, Head]]:
        return self.lines(_decode_head, sizes=sizes)

    def finals(
        self, decode: Callable[[bytes], Any] = _decode_head, *, sizes: Mapping[str, int] | None = None
    ) -> Iterator[tuple[Place, Any]]:
        """The final attempt of every slot, once, in log order. What `decode` gives must have a Head's fields.

        Two passes over the lines that stand there now: only slots with more than one line cost memory, the others
        eight bytes. A third where two lines claim the same first attempt (writers without a lock).
        """
        if sizes is None:
            sizes = whole_sizes(self.path, segments(self.path))
        several = len(sizes) > 1
        best: dict[str, tuple[bool, int]] = {}
        firsts = array("q")
        self.attempts = 0
        for _, head in self.heads(sizes):
            self.attempts += 1
            if head.attempt > 1 or head.id in best or several:
                best[head.id] = max(head.rank, best.get(head.id, (False, 0)))
            else:
                firsts.append(hash(head.id))
        if twice := _repeated(firsts):
            for _, head in self.heads(sizes):
                if hash(head.id) in twice:
                    best[head.id] = max(head.rank, best.get(head.id, (False, 0)))
        for place, line in self.lines(decode, sizes=sizes):
            rank = _rank(line.status, line.attempt)
            if line.id not in best:
                yield place, line
            elif rank >= best[line.id]:
                best[line.id] = (True, line.attempt + 1)  # given out: no other line ranks as high
                yield place, line

    def gradings(self) -> dict[AttemptId, list[Grading]]:
        """The gradings of the active fingerprint, by attempt, in the order they were made."""
        found: dict[AttemptId, list[Grading]] = {}
        active = self.manifest.grading.hash if self.manifest.grading else None
        for _, grading in self.lines(decode_grading, name="scores"):
            if grading.fingerprint == active:
                for member in grading.members:
                    found.setdefault(member, []).append(grading)
        return found

    def read(self, place: Place) -> Rollout:
        """One rollout as it was written, its task's row in it."""
        file = self._open.get(place.segment)
        if file is None:
            file = self._open[place.segment] = (self.path / place.segment).open("rb")
        file.seek(place.offset)
        try:
            return self.with_row(decode_rollout(file.readline()))
        except msgspec.DecodeError as problem:
            raise StoreError(
                f"{self.path / place.segment}: the line at byte {place.offset} is not a rollout: {problem}"
            ) from None

    def with_row(self, rollout: Rollout) -> Rollout:
        """A row too large for the line is read from tasks.jsonl."""
        if rollout.task.data is not None:
            return rollout
        if self._task_offsets is None:
            tasks = self.path / TASKS
            self._task_offsets = read_tasks(tasks) if tasks.exists() else {}
        offset = self._task_offsets.get(rollout.task.digest)
        if offset is None:
            return rollout
        row: Task = read_task(self.path / TASKS, offset)
        return msgspec.structs.replace(rollout, task=msgspec.structs.replace(rollout.task, data=row.data))

    def folded(self, rollout: Rollout, gradings: Mapping[AttemptId, list[Grading]]) -> Rollout:
        """The rollout with the scores that count now."""
        of = self.manifest.grading
        return fold(
            rollout,
            gradings.get((rollout.id, rollout.attempt), []),
            active=of.hash if of else None,
            expected=expected_scorers(of.of if of else {}, rollout.env),
        )


def segments(run: Path, name: str = "rollouts") -> list[str]:
    """The files that make up a log: one, or one a writer."""
    found = {*run.glob(f"{name}.jsonl"), *run.glob(f"{name}.*.jsonl")}
    return sorted(file.name for file in found)


def _repeated(values: array[int]) -> set[int]:
    """The values that stand there more than once."""
    return {value for value, after in pairwise(sorted(values)) if value == after}


def _rank(status: str, attempt: int) -> tuple[bool, int]:
    """The final attempt of a slot is the one of the highest rank: the highest that ended well, else the highest.

    A surplus attempt settles its slot too, but is cancelled: it never takes the place of one that ended.
    """
    return (status in ("completed", "truncated"), attempt)


def load(run: str | Path, *, attempts: str = "final") -> Iterator[Rollout]:
    """The rollouts of a run, ordered by (task.index, sample, attempt), scores folded in, one at a time.

    Final attempts by default; `attempts="all"` gives every line.
    """
    if attempts not in ("final", "all"):
        raise UsageError(f"attempts={attempts!r}: expected 'final' or 'all'")
    return _ordered(RunReader(run), final=attempts == "final")


def _ordered(reader: RunReader, *, final: bool) -> Iterator[Rollout]:
    found = reader.finals() if final else reader.heads()
    order = sorted((head.task.index, head.sample, head.attempt, head.id, place) for place, head in found)
    gradings = reader.gradings()
    for bad in reader.bad_lines:
        _warn(f"{reader.path / bad.segment}:{bad.number} is left out: {bad.problem}")
    with reader:
        for *_, place in order:
            try:
                rollout = reader.read(place)
            except StoreError as problem:
                _warn(f"left out: {problem}")
                continue
            yield reader.folded(rollout, gradings)


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)  # where the rollouts are being read
