"""Rows from other sources (a table, a hub, a function), spooled as JSON lines so that each can be read again.

A row keeps its location for messages: the line in its file, or its index. A value without a JSON form is written in
its only text form (dates and durations as ISO 8601, decimals as digits); otherwise the row is refused and the field
named.
"""

from __future__ import annotations

import datetime
import math
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import IO, Any, Literal
from uuid import UUID

import msgspec

from windrow.errors import UsageError
from windrow.records import Json
from windrow.tasks.rows import MAX_ROW_BYTES, BadRow, Row, parse_row

# (line or index, the row, or why there is none).
NumberedRow = tuple[int, Mapping[str, Any] | ValueError]


class SpooledRows:
    """The rows of a loader in a temporary file, which is deleted when it is closed."""

    def __init__(
        self, numbered_rows: Iterable[NumberedRow], name: str, *, label: Literal["line", "index"]
    ) -> None:
        self.name = name
        self._label = label
        self._file: IO[bytes] = tempfile.TemporaryFile()
        self._numbers = array("Q")
        self._bad: dict[int, str] = {}
        for number, row in numbered_rows:
            try:
                self._file.write(_line(row))
            except (ValueError, RecursionError) as problem:
                self._bad[len(self._numbers)] = str(problem)
            self._numbers.append(number)

    def __iter__(self) -> Iterator[Row | BadRow]:
        self._file.seek(0)
        offset = 0
        for index, number in enumerate(self._numbers):
            where = f"{self.name}:{number}" if self._label == "line" else f"{self.name}[{number}]"
            if index in self._bad:
                yield BadRow(where, self._bad[index])
                continue
            line = self._file.readline()
            row = parse_row(line, where)
            yield Row(index, where, offset, row) if isinstance(row, dict) else row
            offset += len(line)

    def read(self, offset: int) -> dict[str, Json]:
        self._file.seek(offset)
        row = parse_row(self._file.readline(), self.name)
        if isinstance(row, BadRow):
            raise UsageError(f"{self.name}: a spooled row cannot be read back: {row.problem}")
        return row

    def close(self) -> None:
        self._file.close()


def plain(value: Any, field: str = "") -> Json:
    """Return `value` as JSON; ValueError names the field that has no JSON form."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"{field!r} is {value}, which is too large for a number; write it as text")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{field!r} is {value}, which is not JSON; write null or a number")
        return float(value)
    if isinstance(value, Mapping):
        return {_key(key, field): plain(item, f"{field}.{key}".strip(".")) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, field) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta) and not getattr(value, "nanoseconds", 0):
        return msgspec.to_builtins(datetime.timedelta(value.days, value.seconds, value.microseconds))
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raise ValueError(f"{field!r} holds bytes, which are not JSON")
    raise ValueError(
        f"{field!r} holds {type(value).__module__}.{type(value).__qualname__}, which is not JSON"
    )


def _key(key: Any, field: str) -> str:
    if not isinstance(key, str):
        raise ValueError(f"{field or 'the row'!r} has the key {key!r}; JSON keys are text")
    return key


def _line(row: Mapping[str, Any] | ValueError) -> bytes:
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, Mapping):
        raise ValueError(f"expected an object (a dict), found {type(row).__name__}")
    line = msgspec.json.encode(plain(row)) + b"\n"
    if len(line) > MAX_ROW_BYTES:
        raise ValueError(f"the row is longer than {MAX_ROW_BYTES // 2**20} MiB ({len(line):,} bytes)")
    return line
