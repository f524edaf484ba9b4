"""CSV and TSV: the first line names the fields, every value is text."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from windrow.errors import UsageError
from windrow.tasks.rows import BOM, MAX_ROW_BYTES, cannot_read
from windrow.tasks.spool import NumberedRow, SpooledRows

DELIMITERS = {".csv": ",", ".tsv": "\t"}


def open_delimited(path: str) -> SpooledRows:
    """The rows of a .csv or .tsv file, by line. A row that has too many or too few fields is a bad row."""
    delimiter = DELIMITERS[Path(path).suffix.lower()]
    try:
        with Path(path).open("rb") as file:
            return SpooledRows(_numbered_rows(file, path, delimiter), path, label="line")
    except OSError as problem:
        raise cannot_read(path, problem) from None


def _numbered_rows(file: IO[bytes], name: str, delimiter: str) -> Iterator[NumberedRow]:
    csv.field_size_limit(MAX_ROW_BYTES)  # the default, 128 KiB, is less than one long document
    reader = csv.reader(_text_lines(file, name), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        number = reader.line_num + 1  # a quoted field may hold newlines: a row begins after the one before
        try:
            values = next(reader)
        except StopIteration:
            break
        except csv.Error as problem:
            if header is None:
                raise UsageError(f"{name}:{number}: the header is not valid: {problem}") from None
            yield number, ValueError(f"not a valid row: {problem}")
            continue
        if not values:
            continue  # a blank line
        if header is None:
            header = _header(values, f"{name}:{number}")
        elif len(values) != len(header):
            yield (
                number,
                ValueError(f"expected {len(header)} fields ({', '.join(header)}), found {len(values)}"),
            )
        else:
            yield number, dict(zip(header, values, strict=True))
    if header is None:
        raise UsageError(f"{name} is empty; its first line should name the fields")


def _header(names: list[str], where: str) -> list[str]:
    header = [name.strip() for name in names]
    counts = Counter(header)
    for column, name in enumerate(header, 1):
        if not name:
            raise UsageError(f"{where}: column {column} has no name; the first line names the fields")
        if counts[name] > 1:
            raise UsageError(
                f"{where}: the field {name!r} is named twice; each column needs a name of its own"
            )
    return header


def _text_lines(file: IO[bytes], name: str) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        if number == 1:
            if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise UsageError(f"{name} is UTF-16; save it as UTF-8")
            line = line.removeprefix(BOM)
        if b"\0" in line:
            raise UsageError(f"{name}:{number}: a zero byte; this is a binary file, not a table of text")
        try:
            yield line.decode()
        except UnicodeDecodeError as problem:
            raise UsageError(f"{name}:{number}: not UTF-8 text (byte {problem.start} of the line)") from None
