"""The first bytes of a log that only grows, known again: by its stamp if nobody has touched it, else by their checksum."""

from __future__ import annotations

import os
import zlib
from typing import IO, Annotated

import msgspec

READ_BYTES = 1 << 18


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """By which a file that nobody has touched is known again."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class Content(msgspec.Struct, frozen=True, array_like=True):
    """The first `size` bytes of a file, which had this stamp when they were read."""

    stamp: Stamp
    size: Annotated[int, msgspec.Meta(ge=0)]
    checksum: int

    def is_untouched(self, stamp: Stamp, written_ns: int) -> bool:
        """Whether a file with this stamp holds these bytes and no others, as was written down at that time.

        One that is not older than what was written down may have been edited within the same tick of the clock.
        """
        return self.stamp == stamp and self.size == stamp.size and stamp.modified_ns < written_ns

    def begins(self, file: IO[bytes]) -> bool:
        """Whether the file begins with these bytes; reads them."""
        return _checksum(file, self.size) == (self.size, self.checksum)


def stamp_of(status: os.stat_result) -> Stamp:
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def content_of(file: IO[bytes]) -> Content:
    """All that the file holds now."""
    stamp = stamp_of(os.fstat(file.fileno()))
    return Content(stamp, *_checksum(file, stamp.size))


def _checksum(file: IO[bytes], size: int) -> tuple[int, int]:
    """How many of the first `size` bytes there are, and their checksum."""
    checksum, left = 0, size
    file.seek(0)
    while left and (piece := file.read(min(left, READ_BYTES))):
        checksum = zlib.crc32(piece, checksum)
        left -= len(piece)
    return size - left, checksum
