"""Versions of the same line in several inputs: which one wins, and in which order the winners are written.

A line is identified by a hash of its bytes and its subject by a hash of its name; the bytes stay in the input files. All
decisions here depend only on the set of lines.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter

import msgspec

from windrow.store.line_checksums import without_checksum

HASH_BYTES = 16
ORDER_BYTES = 24
SUPERSEDED = 1  # a later verdict replaced this one
UNGROUNDED = 2  # the verdict is about an attempt that is not in the merged log
ASIDE = 4  # the line was in conflicts.jsonl
BARE = 8  # the line has no checksum; one with the same content and a checksum is taken instead
NUMBERED = (
    1  # how the sort key of a verdict with a Lamport number begins; those of the others begin with more
)
NOT_WHOLE = b"\xff"  # how the sort key of an episode that lacks seats begins

# Both sort as what they hold does. They end with a place: the file, by number; where the line begins; its length.
_ENTRY = struct.Struct(f">{HASH_BYTES}s9s{HASH_BYTES}s{ORDER_BYTES}sBHIHQQ")
_OUTPUT = struct.Struct(f">{ORDER_BYTES}s{HASH_BYTES}s?{HASH_BYTES}sIHQQ")
_KEY = itemgetter(0)  # of an entry
_PLACE = attrgetter("number")  # of a version: versions are numbered as they were read


def hashed(*parts: bytes) -> bytes:
    """A hash that is the same in every process."""
    return hashlib.blake2b(b"\0".join(parts), digest_size=HASH_BYTES).digest()


def digest_of(lines: Sequence[bytes]) -> bytes:
    """The digest of a line, or of the lines of an episode. Their checksums do not count: lines of older versions have none."""
    return hashed(*map(without_checksum, lines))


class ByteRange(msgspec.Struct, frozen=True, gc=False):
    """The bytes of a version: the number of the file, and a range in it."""

    file: int
    offset: int
    size: int


class Version(msgspec.Struct, frozen=True, gc=False):
    """A line, or the lines of an episode, of one input. Of two versions, the one with the lower `sort_key` wins."""

    key: bytes  # a hash of its subject
    sort_key: bytes
    digest: bytes
    order: bytes
    flags: int
    run: int
    number: int
    byte_range: ByteRange


def _version(
    key: bytes,
    sort_key: bytes,
    digest: bytes,
    order: bytes,
    flags: int,
    run: int,
    number: int,
    file: int,
    offset: int,
    size: int,
) -> Version:
    return Version(key, sort_key, digest, order, flags, run, number, ByteRange(file, offset, size))


class Resolution(msgspec.Struct, frozen=True):
    """The outcome for all versions of one subject."""

    written: list[Version]  # in the log; the last one counts
    aside: list[tuple[Version, int]]  # in conflicts.jsonl, with their flags

    @property
    def winner(self) -> Version | None:
        return self.written[-1] if self.written else None


class Versions:
    """The versions of many subjects, a hundred bytes each."""

    def __init__(self) -> None:
        self._buckets = [bytearray() for _ in range(256)]
        self.count = 0

    def add(
        self,
        *,
        key: bytes,
        sort_key: bytes,
        lines: Sequence[bytes],
        order: bytes,
        flags: int,
        run: int,
        byte_range: ByteRange,
    ) -> int:
        """Add a version, which has these lines, and return its number."""
        number = self.count
        self.count += 1
        if any(without_checksum(line) is line for line in lines):
            flags |= BARE
        self._buckets[key[0]] += _ENTRY.pack(
            key,
            sort_key,
            digest_of(lines),
            order,
            flags,
            run,
            number,
            byte_range.file,
            byte_range.offset,
            byte_range.size,
        )
        return number

    def of_each(self) -> Iterator[list[Version]]:
        """The versions of each subject, by sort key. Each is dropped from memory once it was given."""
        for position, bucket in enumerate(self._buckets):
            self._buckets[position] = bytearray()
            for _, same in groupby(sorted(_ENTRY.iter_unpack(bucket)), _KEY):
                yield [_version(*entry) for entry in same]


def keep_lowest_rank(versions: list[Version]) -> Resolution:
    """The version with the lowest sort key wins, in whatever order they came; none wins if it lacks seats."""
    distinct = _distinct(versions) if len(versions) > 1 else versions
    stands = 0 if distinct[0].sort_key.startswith(NOT_WHOLE) else 1
    return Resolution(distinct[:stands], [(version, 0) for version in distinct[stands:]])


def keep_last(versions: list[Version]) -> Resolution:
    """For subjects that may have several lines in one input, of which the last counts.

    A version that any input has superseded cannot win; of the others, the one with the lowest sort key wins. Superseded
    versions are written before the winner, so that they remain superseded; the other losers are set aside.
    """
    distinct = _distinct(versions)
    superseded = _superseded(versions)
    living = [version for version in distinct if version.digest not in superseded]
    if not living:  # each was superseded in some input
        return Resolution([distinct[0]], [(version, SUPERSEDED) for version in distinct])
    before = sorted((v for v in distinct if v.digest in superseded), key=lambda version: version.digest)
    return Resolution([*before, living[0]], [(version, 0) for version in living[1:]])


def _number_of(version: Version) -> int:
    """The Lamport number of a verdict that has one."""
    return (2**64 - 1 - int.from_bytes(version.sort_key[1:9], "big")) >> 1


def _superseded(versions: Iterable[Version]) -> set[bytes]:
    digests = {version.digest for version in versions if version.flags & SUPERSEDED}
    by_run: dict[int, list[Version]] = {}
    for version in versions:
        if not version.flags & ASIDE:
            by_run.setdefault(version.run, []).append(version)
    for of_run in by_run.values():
        last = _last_in_run(of_run)
        digests |= {version.digest for version in of_run if version.digest != last.digest}
    return digests


def _last_in_run(versions: list[Version]) -> Version:
    """The version that counts in its run, as the readers of a run decide (`store/gradings.py`)."""
    numbered = [version for version in versions if version.sort_key[:1] == bytes([NUMBERED])]
    if numbered:
        # The bit that puts a failed verdict last is not theirs.
        highest = max(_number_of(version) for version in numbered)
        return max((v for v in numbered if _number_of(v) == highest), key=_PLACE)
    if len({version.byte_range.file for version in versions}) == 1:
        return max(versions, key=_PLACE)
    return min(versions, key=lambda version: (version.sort_key[1:], -version.number))


def _distinct(versions: Iterable[Version]) -> list[Version]:
    """Each version once, in order of first appearance."""
    by_digest: dict[bytes, Version] = {}
    for version in versions:
        by_digest.setdefault(version.digest, version)
    return list(by_digest.values())


class OutputLine(msgspec.Struct, frozen=True, gc=False):
    """A version to be written: its order, and where its bytes are."""

    order: bytes
    digest: bytes
    number: int
    byte_range: ByteRange


class Output:
    """The lines of a log to be written, in order, a hundred bytes per line.

    `piece` says which lines are sorted together: the order's first eight bytes, as a number, without that many bits.
    """

    def __init__(self, piece: int) -> None:
        self._shift = piece
        self._pieces: dict[int, bytearray] = {}
        self.count = 0

    def add(self, order: bytes, version: Version, *, winner: bool) -> None:
        byte_range = version.byte_range
        entry = _OUTPUT.pack(
            order,
            version.key,
            winner,
            version.digest,
            version.number,
            byte_range.file,
            byte_range.offset,
            byte_range.size,
        )
        number = int.from_bytes(order[:8], "big") >> self._shift
        piece = self._pieces.get(number)
        if piece is None:
            piece = self._pieces[number] = bytearray()
        piece += entry
        self.count += 1

    def in_order(self) -> Iterator[OutputLine]:
        for number in sorted(self._pieces):
            for order, _, _, digest, version, *span in sorted(_OUTPUT.iter_unpack(self._pieces[number])):
                yield OutputLine(order, digest, version, ByteRange(*span))


Choice = Callable[[list[Version]], Resolution]
