"""Reading a run: the union of its segments, bad lines skipped and counted, final attempts, gradings folded in.

Reading needs no lock and changes nothing; it may go on while a run is being collected.
"""

from __future__ import annotations

import math
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, chain, count, islice, repeat
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from windrow.errors import StoreError, UsageError
from windrow.records import OPPONENT, Grading, Rollout, Task, decode_grading, decode_rollout
from windrow.store.folding import GRADABLE, R, expected_scorers, fold
from windrow.store.gradings import Gradings, Memberships, decode_grading_head
from windrow.store.line_heads import (
    NOT_A_LINE,
    BadLine,
    Contest,
    Head,
    LogLine,
    check,
    contest,
    decode_head,
    decode_member,
    plain_contest,
    rank,
    without_lost_episodes,
)
from windrow.store.line_positions import LinePosition, LinePositions
from windrow.store.manifest import Fingerprint, Manifest, read_manifest
from windrow.store.resume_index import SegmentIndex
from windrow.store.segments import segments, whole_sizes
from windrow.store.task_file import TASKS, read_task, read_tasks

READ_BYTES = 1 << 17
NEWLINE = 0x0A
BATCH_BYTES = 1 << 17
BATCH_LINES = 512

T = TypeVar("T")


class RunReader:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise UsageError(f"{path} is not a run directory")
        self.manifest: Manifest = read_manifest(self.path)
        self.bad_lines: list[BadLine] = []
        self.attempts = 0  # lines of the log, counted by `finals`
        self.unread_gradings = 0  # that cannot be read, each time that one is asked for
        self._task_offsets: dict[str, int] | None = None
        self._open: dict[str, IO[bytes]] = {}
        self._expected: dict[str, tuple[str, ...]] = {}  # by environment: whose verdicts a rollout is to have

    @property
    def samples(self) -> float:
        """How many samples a group has, by the last call; what a larger one left beyond them belongs to none."""
        found: float = self.manifest.config.get("samples", math.inf)
        return found

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()
        self._open = {}

    def lines(
        self, decode: Callable[[bytes], T], *, name: str = "rollouts", sizes: Mapping[str, int] | None = None
    ) -> Iterator[tuple[LinePosition, T]]:
        """Every good line of the segments, decoded as far as `decode` goes; with `sizes`, up to those bytes."""
        return self._decoded(decode, self._whole_lines(name, sizes))

    def _decoded(
        self, decode: Callable[[bytes], T], lines: Iterable[LogLine]
    ) -> Iterator[tuple[LinePosition, T]]:
        bad: list[BadLine] = []
        for segment, number, offset, line in lines:
            try:
                check(line)
                yield LinePosition(segment, offset), decode(line)
            except NOT_A_LINE as problem:
                bad.append(BadLine(segment, number, str(problem)))
        self.note(bad)

    def note(self, bad: Iterable[BadLine]) -> None:
        """Each bad line is listed once, however often it is read."""
        known = {(line.segment, line.number) for line in self.bad_lines}
        self.bad_lines += [line for line in bad if (line.segment, line.number) not in known]

    def indexes(self) -> Iterator[SegmentIndex]:
        """What each segment says to a resume; of a segment that is indexed, only what was added since is read."""
        for segment in segments(self.path):
            index = SegmentIndex(self.path, segment)
            with self._opened(segment) as file:
                index.load(file)
            self.note(index.bad_lines)
            yield index

    def _plain_batches(
        self, decode: Callable[[bytes], T], sizes: Mapping[str, int]
    ) -> Iterator[list[tuple[LinePosition, T]]]:
        """The same for lines that are all of this version, many at a time: most runs are read so, and it is twice as fast."""
        for segment, number, offset, lines in self._line_batches(sizes):
            try:
                for line in [line for line in lines if not line.isascii()]:
                    line.decode()
                offsets = accumulate(map(len, lines), initial=offset)
                found = list(
                    zip(map(LinePosition, repeat(segment), offsets), map(decode, lines), strict=False)
                )
            except NOT_A_LINE:  # to find out which, one by one
                known = zip(count(number), accumulate(map(len, lines), initial=offset), lines, strict=False)
                found = list(self._decoded(decode, (LogLine(segment, *each) for each in known)))
            yield found

    def _line_batches(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, int, int, list[bytes]]]:
        """The whole lines of the rollouts up to these sizes, many at a time: the segment, the number and the offset of
        the first line, and the lines."""
        for segment in segments(self.path):
            number, offset, end = 1, 0, sizes.get(segment, 0)
            with self._opened(segment) as file:
                while offset < end and (lines := file.readlines(BATCH_BYTES)):
                    size, found = sum(map(len, lines)), len(lines)
                    while lines and (lines[-1][-1] != NEWLINE or offset + size - len(lines[-1]) >= end):
                        size -= len(lines.pop())
                    yield segment, number, offset, lines
                    if len(lines) < found:
                        break
                    number += found
                    offset += size

    def heads(self, sizes: Mapping[str, int] | None = None) -> Iterator[tuple[LinePosition, Head]]:
        return self.lines(decode_head, sizes=sizes)

    def finals(
        self, decode: Callable[[bytes], Any] = decode_head, *, sizes: Mapping[str, int] | None = None
    ) -> Iterator[tuple[LinePosition, Any]]:
        """The final attempt of every slot, once, in log order. What `decode` gives must have a Head's fields.

        The lines that stand there now are looked at, then decoded once. Episodes that lack seats are left out.
        """
        return chain.from_iterable(self.final_batches(decode, sizes=sizes))

    def final_batches(
        self, decode: Callable[[bytes], Any], *, sizes: Mapping[str, int] | None = None
    ) -> Iterator[list[tuple[LinePosition, Any]]]:
        """The same, many at a time."""
        now = whole_sizes(self.path, segments(self.path)) if sizes is None else sizes

        def lines() -> Iterator[LogLine]:
            return without_lost_episodes(self._whole_lines("rollouts", now))

        best = plain_contest(lambda: (lines for _, _, _, lines in self._line_batches(now)))
        if best is None:  # there are episodes with seats, or lines that cannot be read
            best = contest(lambda: (line.text for line in lines()))
            batches = _batches(self._decoded(decode, lines()))
        else:
            batches = self._plain_batches(decode, now)
        self.attempts = 0
        for found in batches:
            self.attempts += len(found)
            yield [each for each in found if _is_final(each[1], best)] if best else found

    def gradings(self, of: Fingerprint | None = None) -> Gradings:
        """The gradings of the active generation, or `of` another, by attempt, in the order they were made.

        One of a group counts only while its members are the final attempts of the group's samples.
        """
        found = Gradings(self._grading)
        wanted = of or self.manifest.grading
        if wanted is None:
            return found
        of_groups = False
        for position, head in self.lines(decode_grading_head, name="scores"):
            if (head.fingerprint, head.generation) == (wanted.hash, wanted.generation):
                of_groups = of_groups or head.is_of_group
                for member in head.members:
                    found.add(member, position)
        if of_groups:
            found.check_groups(self._groups_now())
        return found

    def _grading(self, position: LinePosition) -> Grading | None:
        """None for one that cannot be read: what it is of lacks that verdict, and is judged again."""
        try:
            grading = decode_grading(self.line(position))
            members = len(grading.members)
            optional = (0, members)
            if not (
                len(grading.scores) == members
                and len(grading.metrics) in optional
                and len(grading.tokens) in optional
            ):
                raise msgspec.ValidationError("it has not as many verdicts as members")
            return grading
        except NOT_A_LINE as problem:
            self.unread_gradings += 1
            _warn(
                f"{self.path / position.segment}: the line at byte {position.offset} is left out: {problem}"
            )
            return None

    def _groups_now(self) -> Memberships:
        """Who belongs to each group now."""
        found = Memberships()
        for _, head in self.finals(decode_member):
            if head.status in GRADABLE and head.sample < self.samples and head.agent != OPPONENT:
                found.add(head.group, (head.id, head.attempt))
        return found

    def line(self, position: LinePosition) -> bytes:
        file = self._open.get(position.segment)
        if file is None:
            file = self._open[position.segment] = (self.path / position.segment).open("rb")
        file.seek(position.offset)
        return file.readline()

    def read(self, position: LinePosition) -> Rollout:
        """One rollout as it was written, its task's row in it."""
        return self.at(position, lambda line: self.with_row(decode_rollout(line)))

    def at(self, position: LinePosition, decode: Callable[[bytes], T]) -> T:
        """The line there, decoded. StoreError: it cannot be."""
        try:
            return decode(self.line(position))
        except NOT_A_LINE as problem:
            raise StoreError(
                f"{self.path / position.segment}: the line at byte {position.offset} is not a rollout: {problem}"
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

    def ordered(self, *, final: bool = True) -> Iterator[Rollout]:
        """Rollouts as they were written, by (task.index, sample, attempt); lines that cannot be read are warned of."""
        order = _Order()
        for position, head in self.finals() if final else self.heads():
            order.add(position, head)
        self.warn_of_bad_lines()
        for position in order:
            rollout = self.readable(position)
            if rollout is not None:
                yield rollout

    def warn_of_bad_lines(self) -> None:
        """Warn of each line that could not be read so far."""
        for bad in self.bad_lines:
            _warn(f"{self.path / bad.segment}:{bad.number} is left out: {bad.problem}")

    def readable(self, position: LinePosition) -> Rollout | None:
        """As `read`; one that cannot be read is warned of."""
        try:
            return self.read(position)
        except StoreError as problem:
            _warn(f"left out: {problem}")
            return None

    def folded(self, rollout: R, gradings: Gradings) -> R:
        """The rollout with the scores that count now."""
        of = self.manifest.grading
        expected = self._expected.get(rollout.env)
        if expected is None:
            expected = expected_scorers(of.of if of else {}, rollout.env)
            self._expected[rollout.env] = expected
        return fold(rollout, gradings.of(rollout.key), active=of.hash if of else None, expected=expected)

    def _opened(self, segment: str) -> IO[bytes]:
        try:
            return (self.path / segment).open("rb", buffering=READ_BYTES)
        except FileNotFoundError:  # what was there a moment ago
            raise StoreError(
                f"{self.path / segment} was replaced while it was read, as a merge does; run the command again"
            ) from None

    def _whole_lines(self, name: str, sizes: Mapping[str, int] | None) -> Iterator[LogLine]:
        """Every line that is whole."""
        for segment in segments(self.path, name):
            end = None if sizes is None else sizes.get(segment, 0)
            offset = 0
            with self._opened(segment) as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n") or (end is not None and offset >= end):
                        break
                    yield LogLine(segment, number, offset, line)
                    offset += len(line)


def _is_final(line: Any, best: Contest) -> bool:
    """Whether a line wins its slot; from then on, no other does."""
    id = line.id.encode()
    if id in best:
        if rank(line.status, line.attempt) < best[id]:
            return False
        best[id] = (True, line.attempt + 1)  # given out: no other line ranks as high
    return True


def _batches(lines: Iterable[tuple[LinePosition, T]]) -> Iterator[list[tuple[LinePosition, T]]]:
    found = iter(lines)
    while batch := list(islice(found, BATCH_LINES)):
        yield batch


def load(run: str | Path, *, attempts: str = "final") -> Iterator[Rollout]:
    """The rollouts of a run, ordered by (task.index, sample, attempt, seat), scores folded in, one at a time.

    Final attempts by default; `attempts="all"` gives every line.
    """
    if attempts not in ("final", "all"):
        raise UsageError(f"attempts={attempts!r}: expected 'final' or 'all'")
    return _ordered(RunReader(run), final=attempts == "final")


def _ordered(reader: RunReader, *, final: bool) -> Iterator[Rollout]:
    ordered = reader.ordered(final=final)
    gradings = reader.gradings()
    with reader:
        for rollout in ordered:
            yield reader.folded(rollout, gradings)


class _Order:
    """Places in the order of (task.index, sample, attempt), then of the id, or of the seats of an episode: forty bytes
    each, sorted piece by piece."""

    def __init__(self) -> None:
        self._positions = LinePositions()
        self._pieces: dict[int, array[int]] = {}  # by task.index in thousands, five numbers a place

    def add(self, position: LinePosition, head: Head) -> None:
        index = head.task.index
        piece = self._pieces.setdefault(index >> 10, array("Q"))
        if head.seat is None:
            start = int.from_bytes(head.id.encode()[:8].ljust(8, b"\0"), "big")
        else:
            start = int.from_bytes(head.group.encode()[:6].ljust(6, b"\0"), "big") << 16 | min(
                head.seat, 65535
            )
        piece.extend((index, head.sample, head.attempt, start, self._positions.packed(position)))

    def __iter__(self) -> Iterator[LinePosition]:
        for number in sorted(self._pieces):
            piece = self._pieces.pop(number)
            for *_, packed in sorted(zip(*(piece[field::5] for field in range(5)), strict=True)):
                yield self._positions.unpack(packed)


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)  # where the rollouts are being read
