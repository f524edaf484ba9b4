"""Reading rows: a JSON array, JSON lines, one JSON object, standard input, or rows that a program already holds.

Reading never guesses: a value that is not a JSON object becomes a `BadRow`, which names the file, the line (JSON
lines) or the index (JSON array), and the expected form.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from windrow.errors import UsageError
from windrow.records import Json

MAX_ROW_BYTES = 64 * 2**20
BOM = b"\xef\xbb\xbf"
_decode = msgspec.json.Decoder().decode
_split_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_lenient = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


class Row(msgspec.Struct, frozen=True):
    """One row: `index` counts the rows of the source, `where` is for messages, `offset` is for reading it again."""

    index: int
    where: str
    offset: int
    data: dict[str, Json]


class BadRow(msgspec.Struct, frozen=True):
    where: str
    problem: str


class Rows(Protocol):
    """The rows of a source in their order, each readable again by its offset."""

    @property
    def name(self) -> str: ...
    def __iter__(self) -> Iterator[Row | BadRow]: ...
    def read(self, offset: int) -> dict[str, Json]: ...
    def close(self) -> None: ...


class RowFile:
    """The rows of a file, readable again by offset. The file is JSON lines; other forms are spooled into one."""

    def __init__(self, file: IO[bytes], name: str, *, label: str = "line") -> None:
        self._file = file
        self.name = name
        self._label = label  # what a row is counted by in messages: a line of a file, or an index of an array

    def __iter__(self) -> Iterator[Row | BadRow]:
        self._file.seek(0)
        number, index, offset = 0, 0, 0
        while True:
            line = self._file.readline(MAX_ROW_BYTES + 1)
            if not line:
                return
            number += 1
            where = f"{self.name}:{number}" if self._label == "line" else f"{self.name}[{number - 1}]"
            if len(line) > MAX_ROW_BYTES:
                line_bytes = len(line) + _skip_line(self._file)
                yield BadRow(
                    where, f"the row is longer than {MAX_ROW_BYTES // 2**20} MiB ({line_bytes:,} bytes)"
                )
                index += 1
            elif line.strip():
                row = parse_row(line, where)
                yield Row(index, where, offset, row) if isinstance(row, dict) else row
                index += 1
            offset = self._file.tell()

    def read(self, offset: int) -> dict[str, Json]:
        self._file.seek(offset)
        row = parse_row(self._file.readline(MAX_ROW_BYTES + 1), self.name)
        if isinstance(row, BadRow):
            raise UsageError(f"{self.name} changed while it was being read; start again")
        return row

    def content_digest(self) -> str:
        """Return a digest of the content and of the way its rows are counted; the name and age of the file do not
        matter.
        """
        self._file.seek(0)
        return f"{self._label} {hashlib.file_digest(self._file, 'sha256').hexdigest()}"  # type: ignore[arg-type]

    def close(self) -> None:
        self._file.close()


def parse_row(line: bytes, where: str) -> dict[str, Json] | BadRow:
    """Return the object on one line, or the problem with it."""
    try:
        value = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        return BadRow(where, _json_problem(line, problem))
    if not isinstance(value, dict):
        return BadRow(where, f"expected a JSON object, found {_kind(value)}")
    return value


def open_rows(path: str) -> RowFile:
    """Open a task file (`-` is standard input). The first character tells a JSON array from JSON lines; a file that
    is one object is one row.
    """
    if path == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed; give a .jsonl or .json file of tasks")
        return _opened(_spooled(sys.stdin.buffer), "<stdin>")
    target = Path(path)
    try:
        if target.is_dir():
            raise UsageError(f"{path} is a directory; give a .jsonl or .json file of tasks")
        file = target.open("rb")
        return _opened(file if file.seekable() else _spooled(file), path)
    except OSError as problem:
        raise cannot_read(path, problem) from None


def cannot_read(path: str, problem: OSError) -> UsageError:
    hint = "; check the path" if isinstance(problem, FileNotFoundError) else ""
    return UsageError(f"cannot read the task file {path}: {problem.strerror or problem}{hint}")


def spool_rows(rows: Iterable[Mapping[str, Any]], name: str) -> RowFile:
    """Spool rows that a program holds into a row file."""
    spool: IO[bytes] = tempfile.TemporaryFile()
    for index, row in enumerate(rows):
        try:
            _refuse_non_finite(row)
            line = msgspec.json.encode(row)
        except (TypeError, ValueError, RecursionError) as problem:
            raise UsageError(f"{name}[{index}]: the row is not JSON: {problem}") from None
        spool.write(line + b"\n")
    return RowFile(spool, name, label="index")


def _opened(file: IO[bytes], name: str) -> RowFile:
    file.seek(0)
    head = file.read(4096)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UsageError(f"{name} is UTF-16; save it as UTF-8")
    if b"\0" in head:
        raise UsageError(f"{name} is a binary file; give JSON lines or a JSON array of tasks")
    start = head.removeprefix(BOM).lstrip()
    if not start:
        file.seek(0)
        start = file.read().removeprefix(BOM).lstrip()
    if not start:
        raise UsageError(f"{name} is empty; it should hold one task a line")
    if start.startswith(b"["):
        return _opened_array(file, name)
    if (only := _only_row(file)) is not None:
        return RowFile(only, name, label="index")
    if head.startswith(BOM):
        file.seek(len(BOM))
        return RowFile(_spooled(file), name)
    return RowFile(file, name)


def _only_row(file: IO[bytes]) -> IO[bytes] | None:
    """Return the only row of a file that is a single object over several lines."""
    file.seek(0)
    first = file.readline(MAX_ROW_BYTES).removeprefix(BOM)
    if isinstance(parse_row(first, ""), dict):
        return None
    file.seek(0)
    text = file.read(MAX_ROW_BYTES + 1).removeprefix(BOM)
    if len(text) > MAX_ROW_BYTES or not isinstance(parse_row(text, ""), dict):
        return None
    return io.BytesIO(text.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")


def _opened_array(file: IO[bytes], name: str) -> RowFile:
    """Spool a JSON array as JSON lines, one element per line, so that a row can be read again by offset."""
    file.seek(0)
    text = file.read().removeprefix(BOM)
    try:
        elements = [bytes(element) for element in _split_array(text)]
    except (msgspec.DecodeError, RecursionError):
        if _starts_with_a_whole_array(text):  # JSON lines whose first row is an array: the rows are reported
            return RowFile(_spooled(io.BytesIO(text)), name)
        elements = _split_broken_array(text, name)
    if not elements:
        raise UsageError(f"{name} is an empty array; it should hold at least one task")
    spool: IO[bytes] = tempfile.TemporaryFile()
    for element in elements:
        spool.write(element.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")
    return RowFile(spool, name, label="index")


def _starts_with_a_whole_array(text: bytes) -> bool:
    try:
        _split_array(text.partition(b"\n")[0])
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _split_broken_array(text: bytes, name: str) -> list[bytes]:
    """Yield the elements of an array that is not strict JSON, so that each bad one is reported by its index.

    The json module accepts values that we refuse (NaN, half a surrogate pair). An element that it cannot read ends
    the file.
    """
    elements: list[bytes] = []
    try:
        array = text.decode()
        position = _space(array, array.index("[") + 1)
        while True:
            start = position
            _, end = _lenient.raw_decode(array, start)
            elements.append(array[start:end].encode())
            position = _space(array, end)
            if array[position : position + 1] != ",":
                break
            position = _space(array, position + 1)
        if array[position : position + 1] != "]" or _space(array, position + 1) != len(array):
            raise ValueError(f"expected ',' or ']' after it, found {array[position : position + 10]!r}")
    except UnicodeDecodeError as problem:
        raise UsageError(f"{name}: not UTF-8 text (byte {problem.start})") from None
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{name}[{len(elements)}]: {_json_problem(b'', problem)}") from None
    return elements


def _space(text: str, position: int) -> int:
    """Return the position of the first character from `position` on that is not white space."""
    while text[position : position + 1] in (" ", "\t", "\r", "\n"):
        position += 1
    return position


def _spooled(stream: IO[bytes]) -> IO[bytes]:
    spool: IO[bytes] = tempfile.TemporaryFile()
    shutil.copyfileobj(stream, spool)
    return spool


def _refuse_non_finite(value: Any) -> None:
    """Refuse NaN and infinities, because msgspec would write them as null."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not JSON; write None or a number")
    if isinstance(value, Mapping):
        for item in value.values():
            _refuse_non_finite(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_non_finite(item)


def _skip_line(file: IO[bytes]) -> int:
    skipped = 0
    while chunk := file.readline(2**20):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped


def _json_problem(text: bytes, problem: Exception) -> str:
    """Describe the problem that the decoder found in `text`."""
    try:
        text.decode()
    except UnicodeDecodeError as unicode_problem:
        return f"not UTF-8 text (byte {unicode_problem.start})"
    if isinstance(problem, RecursionError):
        return "the JSON is nested too deeply"
    if isinstance(problem, msgspec.ValidationError):  # JSON, but a number that nothing here can hold
        return str(problem)
    at = re.search(r"\(byte (\d+)\)", str(problem))
    literal = re.match(rb"NaN|Infinity", text[int(at[1]) :]) if at else None
    if literal:
        return f"{literal[0].decode()} is not JSON; write null or a number"
    if re.search(rb"\\ud[89a-f]", text, re.I):
        return f"not valid JSON, perhaps half a surrogate pair (\\ud…): {problem}"
    return f"not valid JSON: {str(problem).removeprefix('JSON is malformed: ')}"


def _kind(value: Json) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
