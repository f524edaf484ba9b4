"""Reading a run: all its segments, unreadable lines skipped and counted, final attempts, gradings folded in.

Reading needs no lock and changes nothing; a run can be read while it is being collected.
"""

from __future__ import annotations

import math
import warnings
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
    BestAttempts,
    Head,
    LogLine,
    best_attempts,
    best_attempts_plain,
    check,
    decode_head,
    decode_member,
    precedence,
    without_lost_episodes,
)
from windrow.store.line_order import LineOrder
from windrow.store.line_positions import LinePosition
from windrow.store.manifest import Fingerprint, Manifest, read_manifest
from windrow.store.resume_index import SegmentIndex
from windrow.store.segments import segments, whole_sizes
from windrow.store.task_file import TASKS, read_task, read_tasks
from windrow.util.directory_swap import standing

READ_BYTES = 1 << 17
NEWLINE = 0x0A
BATCH_BYTES = 1 << 17
BATCH_LINES = 512

T = TypeVar("T")


class RunReader:
    """Reads one run directory. As a context manager it closes the files that `read` and `line` have opened."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise UsageError(f"{path} is not a run directory")
        self.folder = standing(self.path)  # where its files are; its blobs are in `path`
        self.manifest: Manifest = read_manifest(self.folder)
        self.bad_lines: list[BadLine] = []
        self.attempts = 0  # lines of the log, counted by `finals`
        self.unread_gradings = 0  # that could not be read, counted each time one is needed
        self._latest_lamport: int | None = None
        self._task_offsets: dict[str, int] | None = None
        self._open: dict[str, IO[bytes]] = {}
        self._expected: dict[str, tuple[str, ...]] = {}  # by environment: the scorers of a rollout

    @property
    def samples(self) -> float:
        """How many samples a group has in the last call. Samples that an earlier call made beyond them are in no group."""
        samples: float = self.manifest.config.get("samples", math.inf)
        return samples

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()
        self._open = {}

    def lines(
        self, decode: Callable[[bytes], T], *, name: str = "rollouts", sizes: Mapping[str, int] | None = None
    ) -> Iterator[tuple[LinePosition, T]]:
        """Every readable line of a log, decoded; with `sizes`, only up to those sizes of the segments in bytes."""
        return self._decoded(decode, self.whole_lines(name, sizes))

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
        """Add to `bad_lines`; a line that is read again is listed once."""
        listed = {(line.segment, line.number) for line in self.bad_lines}
        self.bad_lines += [line for line in bad if (line.segment, line.number) not in listed]

    def indexes(self) -> Iterator[SegmentIndex]:
        """The resume index of each segment. Only lines that were appended since it was saved are read."""
        for segment in segments(self.folder):
            index = SegmentIndex(self.folder, segment)
            with self._opened(segment) as file:
                index.load(file)
            self.note(index.bad_lines)
            yield index

    def _plain_batches(
        self, decode: Callable[[bytes], T], sizes: Mapping[str, int]
    ) -> Iterator[list[tuple[LinePosition, T]]]:
        """Decoded lines in batches, for logs whose lines all have this schema version. It is twice as fast; most runs do."""
        for segment, number, offset, lines in self._line_batches(sizes):
            try:
                for line in [line for line in lines if not line.isascii()]:
                    line.decode()
                offsets = accumulate(map(len, lines), initial=offset)
                batch = list(
                    zip(map(LinePosition, repeat(segment), offsets), map(decode, lines), strict=False)
                )
            except NOT_A_LINE:  # decode one by one, to find out which
                numbered = zip(
                    count(number), accumulate(map(len, lines), initial=offset), lines, strict=False
                )
                batch = list(self._decoded(decode, (LogLine(segment, *each) for each in numbered)))
            yield batch

    def _line_batches(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, int, int, list[bytes]]]:
        """The whole lines of the rollouts up to these sizes, in batches: the segment, the number and the offset of the
        first line, and the lines."""
        for segment in segments(self.folder):
            number, offset, end = 1, 0, sizes.get(segment, 0)
            with self._opened(segment) as file:
                while offset < end and (lines := file.readlines(BATCH_BYTES)):
                    size, lines_read = sum(map(len, lines)), len(lines)
                    while lines and (lines[-1][-1] != NEWLINE or offset + size - len(lines[-1]) >= end):
                        size -= len(lines.pop())
                    yield segment, number, offset, lines
                    if len(lines) < lines_read:
                        break
                    number += lines_read
                    offset += size

    def heads(self, sizes: Mapping[str, int] | None = None) -> Iterator[tuple[LinePosition, Head]]:
        return self.lines(decode_head, sizes=sizes)

    def finals(
        self, decode: Callable[[bytes], Any] = decode_head, *, sizes: Mapping[str, int] | None = None
    ) -> Iterator[tuple[LinePosition, Any]]:
        """The final attempt of every slot, once, in log order. The results of `decode` must have the fields of a Head.

        Lines that are appended meanwhile are not read. Episodes that lack seats are left out.
        """
        return chain.from_iterable(self.final_batches(decode, sizes=sizes))

    def final_batches(
        self, decode: Callable[[bytes], Any], *, sizes: Mapping[str, int] | None = None
    ) -> Iterator[list[tuple[LinePosition, Any]]]:
        """The final attempts in batches."""
        now = whole_sizes(self.folder, segments(self.folder)) if sizes is None else sizes

        def lines() -> Iterator[LogLine]:
            return without_lost_episodes(self.whole_lines("rollouts", now))

        best = best_attempts_plain(lambda: (lines for _, _, _, lines in self._line_batches(now)))
        if best is None:  # there are episodes with seats, or lines that cannot be read
            best = best_attempts(lambda: (line.text for line in lines()))
            batches = _batches(self._decoded(decode, lines()))
        else:
            batches = self._plain_batches(decode, now)
        self.attempts = 0
        for batch in batches:
            self.attempts += len(batch)
            yield [each for each in batch if _is_final(each[1], best)] if best else batch

    def gradings(self, generation: Fingerprint | None = None) -> Gradings:
        """The gradings of the active generation, or `of` another, by attempt, in the order they were made.

        One of a group counts only while its members are the final attempts of the group's samples.
        """
        gradings = Gradings(self._grading)
        wanted = generation or self.manifest.grading
        if wanted is None:
            return gradings
        of_groups = False
        latest = 0
        for position, head in self.lines(decode_grading_head, name="scores"):
            latest = max(latest, head.lamport)
            if (head.fingerprint, head.generation) == (wanted.hash, wanted.generation):
                of_groups = of_groups or head.is_of_group
                for member in head.members:
                    gradings.add(member, position)
        self._latest_lamport = latest
        if of_groups:
            gradings.check_groups(self._groups_now())
        return gradings

    def latest_lamport(self) -> int:
        """The highest Lamport number of all gradings, when they were first read; 0 without any."""
        if self._latest_lamport is None:
            heads = self.lines(decode_grading_head, name="scores")
            self._latest_lamport = max((head.lamport for _, head in heads), default=0)
        return self._latest_lamport

    def _grading(self, position: LinePosition) -> Grading | None:
        """None for a grading that cannot be read: its rollouts lack that verdict and are graded again."""
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
                f"{self.folder / position.segment}: the line at byte {position.offset} is left out: {problem}"
            )
            return None

    def _groups_now(self) -> Memberships:
        """The members of each group now."""
        memberships = Memberships()
        for _, head in self.finals(decode_member):
            if head.status in GRADABLE and head.sample < self.samples and head.agent != OPPONENT:
                memberships.add(head.group, (head.id, head.attempt))
        return memberships

    def line(self, position: LinePosition) -> bytes:
        file = self._open.get(position.segment)
        if file is None:
            file = self._open[position.segment] = (self.folder / position.segment).open("rb")
        file.seek(position.offset)
        return file.readline()

    def read(self, position: LinePosition) -> Rollout:
        """One rollout as it was written, with its task's row."""
        return self.at(position, lambda line: self.with_row(decode_rollout(line)))

    def at(self, position: LinePosition, decode: Callable[[bytes], T]) -> T:
        """The line at a position, decoded. Raises StoreError if it cannot be."""
        try:
            return decode(self.line(position))
        except NOT_A_LINE as problem:
            raise StoreError(
                f"{self.folder / position.segment}: the line at byte {position.offset} is not a rollout: {problem}"
            ) from None

    def with_row(self, rollout: Rollout) -> Rollout:
        """The rollout with its task's row, which is read from tasks.jsonl if it was too large for the line."""
        if rollout.task.data is not None:
            return rollout
        if self._task_offsets is None:
            tasks = self.folder / TASKS
            self._task_offsets = read_tasks(tasks) if tasks.exists() else {}
        offset = self._task_offsets.get(rollout.task.digest)
        if offset is None:
            return rollout
        row: Task = read_task(self.folder / TASKS, offset)
        return msgspec.structs.replace(rollout, task=msgspec.structs.replace(rollout.task, data=row.data))

    def ordered(self, *, final: bool = True) -> Iterator[Rollout]:
        """Rollouts as they were written, by (task.index, sample, attempt). Unreadable lines give warnings."""
        order = LineOrder()
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
            _warn(f"{self.folder / bad.segment}:{bad.number} is left out: {bad.problem}")

    def readable(self, position: LinePosition) -> Rollout | None:
        """As `read`, but an unreadable rollout gives a warning and None."""
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
            return (self.folder / segment).open("rb", buffering=READ_BYTES)
        except FileNotFoundError:  # what was there a moment ago
            raise StoreError(
                f"{self.folder / segment} was replaced while it was read, as a merge does; run the command again"
            ) from None

    def whole_lines(self, name: str, sizes: Mapping[str, int] | None = None) -> Iterator[LogLine]:
        """Every line of a log that ends in a newline, whatever it holds; with `sizes`, up to those sizes."""
        for segment in segments(self.folder, name):
            end = None if sizes is None else sizes.get(segment, 0)
            offset = 0
            with self._opened(segment) as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n") or (end is not None and offset >= end):
                        break
                    yield LogLine(segment, number, offset, line)
                    offset += len(line)


def _is_final(line: Any, best: BestAttempts) -> bool:
    """Whether a line is the final attempt of its slot. After that no other line of the slot is."""
    id = line.id.encode()
    if id in best:
        if precedence(line.status, line.attempt) < best[id]:
            return False
        best[id] = (True, line.attempt + 1)  # yielded: no other line ranks as high
    return True


def _batches(lines: Iterable[tuple[LinePosition, T]]) -> Iterator[list[tuple[LinePosition, T]]]:
    remaining = iter(lines)
    while batch := list(islice(remaining, BATCH_LINES)):
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


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)  # where the rollouts are being read
