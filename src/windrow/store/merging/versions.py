"""What many lines say of the same things, in little memory: which version of each stands, and in which order they are written.

A line is known by a hash of its bytes, and what it is of by a hash of its name; the bytes stay where they are. All
that is decided here depends on the set of the lines alone.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter

import msgspec

HASH_BYTES = 16
ORDER_BYTES = 24
SUPERSEDED = 1  # a later verdict was given where this one stood
UNGROUNDED = 2  # it is of an attempt that is not the one that stands
ASIDE = 4  # it stood in conflicts.jsonl
NOT_WHOLE = b"\xff"  # how the rank begins of what is left of an episode

# Both sort as what they hold does. They end with a place: the file, by number; where the line begins; its length.
_ENTRY = struct.Struct(f">{HASH_BYTES}s9s{HASH_BYTES}s{ORDER_BYTES}sBHIHQQ")
_OUTPUT = struct.Struct(f">{ORDER_BYTES}s{HASH_BYTES}s?{HASH_BYTES}sIHQQ")
_KEY = itemgetter(0)  # of an entry


def hashed(*parts: bytes) -> bytes:
    """The same in every process."""
    return hashlib.blake2b(b"\0".join(parts), digest_size=HASH_BYTES).digest()


class ByteRange(msgspec.Struct, frozen=True, gc=False):
    """Where the bytes of a version are."""

    file: int
    offset: int
    size: int


class Version(msgspec.Struct, frozen=True, gc=False):
    """A line, or the lines of an episode, of one input. `rank`: of two versions, the one of the lower rank stands."""

    key: bytes  # a hash of what it is of
    rank: bytes
    digest: bytes
    order: bytes
    flags: int
    run: int
    number: int
    byte_range: ByteRange


def _version(
    key: bytes,
    rank: bytes,
    digest: bytes,
    order: bytes,
    flags: int,
    run: int,
    number: int,
    file: int,
    offset: int,
    size: int,
) -> Version:
    return Version(key, rank, digest, order, flags, run, number, ByteRange(file, offset, size))


class Resolution(msgspec.Struct, frozen=True):
    """How the versions of one thing came out."""

    written: list[Version]  # what is in the log; the last one counts
    aside: list[tuple[Version, int]]  # what is in conflicts.jsonl, with its flags

    @property
    def winner(self) -> Version | None:
        return self.written[-1] if self.written else None


class Versions:
    """Versions of many things, a hundred bytes each."""

    def __init__(self) -> None:
        self._buckets = [bytearray() for _ in range(256)]
        self.count = 0

    def add(
        self,
        *,
        key: bytes,
        rank: bytes,
        digest: bytes,
        order: bytes,
        flags: int,
        run: int,
        byte_range: ByteRange,
    ) -> int:
        """The number that the version has from now on."""
        number = self.count
        self.count += 1
        self._buckets[key[0]] += _ENTRY.pack(
            key, rank, digest, order, flags, run, number, byte_range.file, byte_range.offset, byte_range.size
        )
        return number

    def of_each(self) -> Iterator[list[Version]]:
        """The versions of each thing, by rank; they are forgotten on the way."""
        for position, bucket in enumerate(self._buckets):
            self._buckets[position] = bytearray()
            for _, same in groupby(sorted(_ENTRY.iter_unpack(bucket)), _KEY):
                yield [_version(*entry) for entry in same]


def keep_lowest_rank(versions: list[Version]) -> Resolution:
    """The one of the lowest rank stands, whoever was first; none if it is not whole."""
    distinct = _distinct(versions) if len(versions) > 1 else versions
    stands = 0 if distinct[0].rank.startswith(NOT_WHOLE) else 1
    return Resolution(distinct[:stands], [(version, 0) for version in distinct[stands:]])


def keep_last(versions: list[Version]) -> Resolution:
    """Of things of which an input may have several, the last of which counts there.

    What any input has superseded does not stand; of what no input has, the one of the lowest rank does. Which were
    superseded is kept: the superseded stand before the winner, and what nobody superseded is set aside.
    """
    distinct = _distinct(versions)
    superseded = _superseded(versions)
    living = [version for version in distinct if version.digest not in superseded]
    if not living:  # each has followed another somewhere
        return Resolution([distinct[0]], [(version, SUPERSEDED) for version in distinct])
    before = sorted((v for v in distinct if v.digest in superseded), key=lambda version: version.digest)
    return Resolution([*before, living[0]], [(version, 0) for version in living[1:]])


def _superseded(versions: Iterable[Version]) -> set[bytes]:
    found = {version.digest for version in versions if version.flags & SUPERSEDED}
    by_run: dict[int, list[Version]] = {}
    for version in versions:
        if not version.flags & ASIDE:
            by_run.setdefault(version.run, []).append(version)
    for own in by_run.values():
        last = max(own, key=lambda version: version.number)
        found |= {version.digest for version in own if version.digest != last.digest}
    return found


def _distinct(versions: Iterable[Version]) -> list[Version]:
    """Each once, in the order they come in."""
    found: dict[bytes, Version] = {}
    for version in versions:
        found.setdefault(version.digest, version)
    return list(found.values())


class OutputLine(msgspec.Struct, frozen=True, gc=False):
    """A version that is to be written, as far as that needs to be known."""

    order: bytes
    digest: bytes
    number: int
    byte_range: ByteRange


class Output:
    """What is written to a log, in its order, a hundred bytes a line.

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
            for order, _, _, digest, version, *place in sorted(_OUTPUT.iter_unpack(self._pieces[number])):
                yield OutputLine(order, digest, version, ByteRange(*place))


Choice = Callable[[list[Version]], Resolution]
