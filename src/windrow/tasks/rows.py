"""Reading rows: a JSON array, JSON lines, standard input, or rows that a program already holds.

Reading never guesses: whatever is not a JSON object comes out as a `BadRow` with the file, the line (JSON lines) or
the index (JSON array), and what was expected.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from windrow.errors import UsageError
from windrow.records import Json

MAX_ROW_BYTES = 64 * 2**20
_decode = msgspec.json.Decoder().decode
_split_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Row(msgspec.Struct, frozen=True):
    """One row: `index` counts the rows of the source, `where` is for messages, `offset` is for reading it again."""

    index: int
    where: str
    offset: int
    data: dict[str, Json]


class BadRow(msgspec.Struct, frozen=True):
    where: str
    problem: str


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

    def close(self) -> None:
        self._file.close()


def parse_row(line: bytes, where: str) -> dict[str, Json] | BadRow:
    """The object on one line, or what is wrong with it."""
    try:
        value = _decode(line)
    except RecursionError:
        return BadRow(where, "the JSON is nested too deeply")
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        return BadRow(where, _json_problem(line, problem))
    if not isinstance(value, dict):
        return BadRow(where, f"expected a JSON object, found {_kind(value)}")
    return value


def open_rows(path: str) -> RowFile:
    """Open a task file (`-` is standard input). JSON lines and a JSON array are told apart by the first character."""
    if path == "-":
        spool: IO[bytes] = tempfile.TemporaryFile()
        shutil.copyfileobj(sys.stdin.buffer, spool)
        return _opened(spool, "<stdin>")
    target = Path(path)
    try:
        if target.is_dir():
            raise UsageError(f"{path} is a directory; give a .jsonl or .json file of tasks")
        return _opened(target.open("rb"), path)
    except OSError as problem:
        hint = "; check the path" if isinstance(problem, FileNotFoundError) else ""
        raise UsageError(f"cannot read the task file {path}: {problem.strerror}{hint}") from None


def spool_rows(rows: Iterable[Mapping[str, Any]], name: str) -> RowFile:
    """Rows that a program holds, as a row file."""
    spool: IO[bytes] = tempfile.TemporaryFile()
    for index, row in enumerate(rows):
        try:
            line = msgspec.json.encode(row)
        except (TypeError, ValueError, UnicodeError) as problem:
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
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start:
        file.seek(0)
        if not file.read().removeprefix(b"\xef\xbb\xbf").strip():
            raise UsageError(f"{name} is empty; it should hold one task a line")
    if start.startswith(b"["):
        return _spooled_array(file, name)
    if head.startswith(b"\xef\xbb\xbf"):
        spool: IO[bytes] = tempfile.TemporaryFile()
        file.seek(3)
        shutil.copyfileobj(file, spool)
        return RowFile(spool, name)
    return RowFile(file, name)


def _spooled_array(file: IO[bytes], name: str) -> RowFile:
    """A JSON array as JSON lines, one element a line, so that a row can be read again by offset."""
    file.seek(0)
    text = file.read().removeprefix(b"\xef\xbb\xbf")
    try:
        elements = _split_array(text)
    except (msgspec.DecodeError, RecursionError) as problem:
        if _looks_like_lines(text):
            return RowFile(file, name)
        raise UsageError(f"{name}: not a valid JSON array: {_json_problem(text, problem)}") from None
    if not elements:
        raise UsageError(f"{name} is an empty array; it should hold at least one task")
    spool: IO[bytes] = tempfile.TemporaryFile()
    for element in elements:
        spool.write(bytes(element).replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")
    return RowFile(spool, name, label="index")


def _looks_like_lines(text: bytes) -> bool:
    """A JSON-lines file whose first line happens to be an array: its rows are reported, not the whole file."""
    first = text.partition(b"\n")[0]
    return not isinstance(parse_row(first, ""), BadRow) or first.rstrip().endswith(b"]")


def _skip_line(file: IO[bytes]) -> int:
    skipped = 0
    while chunk := file.readline(2**20):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped


def _json_problem(text: bytes, problem: Exception) -> str:
    try:
        text.decode()
    except UnicodeDecodeError as unicode_problem:
        return f"not UTF-8 text (byte {unicode_problem.start})"
    for literal in (b"NaN", b"Infinity"):
        if literal in text:
            return f"{literal.decode()} is not JSON; write null or a number"
    if b"\\ud" in text.lower():
        return f"not valid JSON, perhaps half a surrogate pair (\\ud…): {problem}"
    return f"not valid JSON: {str(problem).removeprefix('JSON is malformed: ')}"


def _kind(value: Json) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
