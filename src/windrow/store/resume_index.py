"""The index of a segment: what its lines say to a call that resumes, so that only what was added since is read.

The log stays the only truth. An index says of the first `size` bytes of its segment which slots they settle, which they
only tried, by which attempt, and which lines cannot be read. The rest of the segment is read line by line and added. It
names groups and samples, not slots, so it serves any plan: a larger limit, more samples, another order, a rank's share.

It is believed while the segment is the file that it was made of, untouched: same inode, size and times, and older than
its index (an edit within one tick of the file system's clock changes no time). Otherwise, as after a kill or a copy, the
checksum of those bytes decides. If that differs, the whole segment is read.

An index is written when a call has read a segment, when the segment's writer closes it, and on the way whenever the
segment has grown by a quarter. It is never synced (`store/index_files.py`).
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec

from windrow.records import Rollout
from windrow.store.folding import is_ungraded
from windrow.store.index_files import read_derived, worth_keeping, write_derived
from windrow.store.line_heads import (
    NOT_A_LINE,
    BadLine,
    Count,
    Head,
    attempts_of,
    check,
    decode_head,
    is_last_seat,
)
from windrow.store.log_stamp import READ_BYTES, Content, Stamp, stamp_of
from windrow.util.disk import Disk

MIN_GROWTH_BYTES = 64 << 20  # between two indexes that one call writes on its way
NEWLINE = 0x0A
GROUP_BYTES = 12
SAMPLES_PER_ROW = 64
MAX_SAMPLES = 1 << 32
OPEN_ROWS = 4096

_row = struct.Struct(f"<{GROUP_BYTES}sIQ")  # a group, which 64 of its samples, which of those are settled


class Tried(msgspec.Struct, frozen=True, array_like=True):
    """The last attempt at a slot that its segment does not settle. `again`: the slot is to be tried once more."""

    attempt: Count
    again: bool


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """An index as it is kept."""

    content: Content
    lines: Count
    settled: bytes
    tried: list[tuple[str, Count, Tried]]
    gradings: list[str | None]
    ungraded: bool
    seats: bool
    bad_lines: list[tuple[Count, str]]

    def __post_init__(self) -> None:
        if len(self.settled) % _row.size:
            raise ValueError("a row is cut off")
        if not all(problem.isprintable() for _, problem in self.bad_lines):
            raise ValueError("a problem is no text that we write")


class SegmentIndex:
    """What the first `size` bytes of a segment say.

    Of what they settle: `gradings` are the fingerprints under which it was graded; `ungraded` says whether a line lacks a
    verdict, `seats` whether there are episodes of several seats.
    """

    def __init__(self, run: Path, segment: str) -> None:
        self.segment = segment
        self.size = 0
        self.tried: dict[tuple[str, int], Tried] = {}  # by group and sample
        self.gradings: set[str | None] = set()
        self.ungraded = False
        self.seats = False
        self.bad_lines: list[BadLine] = []
        self._run = run
        self._path = os.fspath(run / segment)
        self._lines = 0
        self._checksum = 0
        self._settled = bytearray()
        self._open_rows: dict[tuple[str, int], int] = {}  # those to which samples are still added
        self._stamp: Stamp | None = None  # the segment's, when `size` was all of it
        self._stored: Stamp | None = None
        self._stored_size = 0
        self._storable = True

    @property
    def content(self) -> tuple[str, int, int]:
        """Which bytes of which segment it is of: its name, how many, and their checksum."""
        return self.segment, self.size, self._checksum

    def settled(self) -> Iterator[tuple[str, int, int]]:
        """(group, first sample, bits): bit n stands for sample first + n. A row may come up twice; both count."""
        self._close_rows()
        for group, number, bits in _row.iter_unpack(self._settled):
            yield group.hex(), number * SAMPLES_PER_ROW, bits

    def committed(self, rollouts: Sequence[Rollout | Head], lines: bytes, disk: Disk) -> None:
        """These rollouts were appended to the segment, as these lines."""
        self._add(attempts_of(rollouts))
        self._checksum = zlib.crc32(lines, self._checksum)
        self._lines += len(rollouts)
        self.size += len(lines)
        try:
            self._stamp = stamp_of(os.stat(self._path))
        except OSError:  # the run was moved, which its open log outlives
            self._stamp = None
        if self._stamp is None or self._stamp.size != self.size:  # somebody else has appended something
            self._storable = False
        if self.size - self._stored_size > max(MIN_GROWTH_BYTES, self._stored_size // 4):
            self.save(disk)

    def save(self, disk: Disk) -> None:
        """Keep the index, unless the segment is too short or this is what is kept."""
        stamp = self._stamp
        if stamp is None or stamp == self._stored or not self._storable or not worth_keeping(self.size):
            return
        self._close_rows()
        stored = _Stored(
            content=Content(stamp, self.size, self._checksum),
            lines=self._lines,
            settled=bytes(self._settled),
            tried=[(group, sample, tried) for (group, sample), tried in self.tried.items()],
            gradings=sorted(self.gradings, key=str),
            ungraded=self.ungraded,
            seats=self.seats,
            bad_lines=[(bad.number, bad.problem) for bad in self.bad_lines],
        )
        write_derived(self._run, _name(self.segment), stored, disk)
        self._stored, self._stored_size = stamp, self.size

    def load(self, file: IO[bytes]) -> None:
        """Begin with what is kept, if that is still true of the segment, and add the lines that follow."""
        self._stamp = stamp_of(os.fstat(file.fileno()))
        self._restore(file)
        file.seek(self.size)
        self._add(attempts_of(self._heads(file)))

    def _restore(self, file: IO[bytes]) -> None:
        derived = read_derived(self._run, _name(self.segment), _Stored)
        if derived is None:
            return
        (stored, written_ns), stamp = derived, self._stamp
        assert stamp is not None
        untouched = stored.content.is_untouched(stamp, written_ns)
        if not untouched and not stored.content.begins(file):
            return
        self.size, self._lines, self._checksum = stored.content.size, stored.lines, stored.content.checksum
        self._settled = bytearray(stored.settled)
        self.tried = {(group, sample): tried for group, sample, tried in stored.tried}
        self.gradings, self.ungraded, self.seats = set(stored.gradings), stored.ungraded, stored.seats
        self.bad_lines = [BadLine(self.segment, number, problem) for number, problem in stored.bad_lines]
        self._stored, self._stored_size = (stamp if untouched else None), stored.content.size

    def _heads(self, file: IO[bytes]) -> Iterator[Head]:
        """The whole lines from here on; those that cannot be read are noted."""
        checksum, size, number = self._checksum, self.size, self._lines
        head: Head | None = None
        for line in file:
            if line[-1] != NEWLINE:
                break
            checksum = zlib.crc32(line, checksum)
            size += len(line)
            number += 1
            try:
                check(line)
                head = decode_head(line)
                yield head
            except NOT_A_LINE as problem:
                self.bad_lines.append(BadLine(self.segment, number, str(problem)))
        self._checksum, self.size, self._lines = checksum, size, number
        self._storable = head is None or is_last_seat(head)  # the other seats may be on their way

    def _add(self, attempts: Iterable[tuple[Head | Rollout, bool]]) -> None:
        rows, tried = self._open_rows, self.tried
        for head, whole in attempts:
            slot = head.group, head.sample
            if head.done and whole:
                row = head.group, head.sample // SAMPLES_PER_ROW
                rows[row] = rows.get(row, 0) | 1 << head.sample % SAMPLES_PER_ROW
                if len(rows) > OPEN_ROWS:
                    self._close_rows()
                if tried:
                    tried.pop(slot, None)
                self.gradings.add(head.grading)
                self.ungraded = self.ungraded or is_ungraded(head)
                self.seats = self.seats or head.seat is not None
                continue
            before = tried.get(slot)
            if before is None or head.attempt >= before.attempt:
                again = not whole or head.error is None or head.error.retryable
                tried[slot] = Tried(head.attempt, again)

    def _close_rows(self) -> None:
        for (group, number), bits in self._open_rows.items():
            if number < MAX_SAMPLES // SAMPLES_PER_ROW and _is_group(group):  # no plan has others
                self._settled += _row.pack(bytes.fromhex(group), number, bits)
        self._open_rows.clear()


def load_index(run: Path, segment: str) -> SegmentIndex:
    """The index of all whole lines that the segment has now. FileNotFoundError: there is no such segment."""
    index = SegmentIndex(run, segment)
    with (run / segment).open("rb", buffering=READ_BYTES) as file:
        index.load(file)
    return index


def _name(segment: str) -> str:
    """What the index of a segment is called; not as a segment is, of which readers take all that they find."""
    return segment.removesuffix(".jsonl") + ".index"


def _is_group(name: str) -> bool:
    try:
        return len(name) == 2 * GROUP_BYTES and bytes.fromhex(name).hex() == name
    except ValueError:
        return False
