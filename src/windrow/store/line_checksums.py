"""The checksum of a line: its last field is the CRC32 of the bytes before it, so that a flipped bit shows.

`…,"crc32":"89abcdef"}` is of all bytes of the line before that comma, in eight hex digits. Lines of older versions have
none. Only `windrow verify` checks it: a line that can be read is read, resumed from and merged as it is.
"""

from __future__ import annotations

import zlib

_FIELD, _END = b',"crc32":"', b'"}'
_DIGITS = 8
_SIZE = len(_FIELD) + _DIGITS + len(_END)
_MAX_DAMAGED_BYTES = 2  # of the field's own syntax; with more, the line has another last field


def with_checksum(line: bytes) -> bytes:
    """The line, one JSON object without its newline, with its checksum as the last field."""
    content = line[:-1]
    return b'%b,"crc32":"%08x"}' % (content, zlib.crc32(content))


def without_checksum(line: bytes) -> bytes:
    """The line as it was before `with_checksum`; a line without a checksum, or with one that does not fit, as it is."""
    content, field = line[:-_SIZE], line[-_SIZE:]
    return content + b"}" if field == b',"crc32":"%08x"}' % zlib.crc32(content) else line


def checksum_problem(line: bytes) -> str | None:
    """What is wrong with the checksum of a line, given without its newline; None also for a line that has none."""
    content, field = line[:-_SIZE], line[-_SIZE:]
    if len(field) < _SIZE:
        return None
    digits = field[len(_FIELD) : -len(_END)]
    syntax = field[: len(_FIELD)] + field[-len(_END) :]
    damaged = sum(found != due for found, due in zip(syntax, _FIELD + _END, strict=True))
    if damaged > _MAX_DAMAGED_BYTES:
        return None
    if damaged:
        return "its field crc32 is damaged"
    due = b"%08x" % zlib.crc32(content)
    if digits == due:
        return None
    return f"its bytes have the CRC32 {due.decode()}, not {digits.decode(errors='replace')!r}"
