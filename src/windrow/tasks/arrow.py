"""Arrow tables as rows: Parquet files (the extra `parquet`) and data sets that the package `datasets` has loaded.

A Parquet file may unfold to any size: one text, kept once, can be the value of a million rows. So texts stay references
until the row is made, and a file that unfolds out of all proportion is refused.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from windrow.errors import UsageError
from windrow.registry import import_extra
from windrow.tasks.rows import cannot_read
from windrow.tasks.spool import NumberedRow, SpooledRows

BATCH_ROWS = 1024
BATCH_BYTES = 64 << 20  # of values that are made at a time; a single row may be more
MAX_UNFOLDED_BYTES = 256 << 20  # of a file, or MAX_RATIO times its size where that is more
MAX_RATIO = 1000
VALUE_BYTES = 8


def open_parquet(path: str) -> SpooledRows:
    """Return the rows of a Parquet file, by index; the file is read one batch at a time."""
    parquet = import_extra("pyarrow.parquet", extra="parquet", what=f"reading {path}")
    try:
        with open(path, "rb") as file:
            metadata = parquet.read_metadata(file)
            bound = _Unfolding(path, os.fstat(file.fileno()).st_size)
            references = _check_metadata(metadata, bound)
            with parquet.ParquetFile(file, metadata=metadata, read_dictionary=references) as table:
                batches = _bounded(table.iter_batches(batch_size=BATCH_ROWS), bound)
                return SpooledRows(
                    arrow_rows(batches, metadata.schema.to_arrow_schema(), path), path, label="index"
                )
    except OSError as problem:
        raise cannot_read(path, problem) from None
    except import_extra("pyarrow", extra="parquet", what=path).ArrowException as problem:
        raise UsageError(f"{path} is not a readable Parquet file: {problem}") from None


class _Unfolding:
    """How much a file has unfolded to so far; UsageError where that is out of all proportion."""

    def __init__(self, path: str, file_bytes: int) -> None:
        self._path = path
        self._file_bytes = file_bytes
        self._most = max(MAX_UNFOLDED_BYTES, MAX_RATIO * file_bytes)
        self._unfolded = 0

    def add(self, size: int) -> None:
        self._unfolded += size
        self.check(self._unfolded)

    def check(self, size: int) -> None:
        if size > self._most:
            raise UsageError(
                f"{self._path} has {self._file_bytes:,} bytes and unfolds to more than {self._most >> 20:,} MiB, which is more "
                f"than {MAX_RATIO} times as much; if you trust it, write it as JSON lines and give that file"
            )


def _check_metadata(metadata: Any, bound: _Unfolding) -> list[str]:
    """Refuse a file whose values alone are too many or too large; return the columns of texts."""
    texts: set[str] = set()
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = [group.column(number) for number in range(group.num_columns)]
        texts |= {column.path_in_schema for column in columns if column.physical_type == "BYTE_ARRAY"}
        bound.check(sum(column.num_values * VALUE_BYTES for column in columns))
        bound.check(sum(column.total_uncompressed_size for column in columns))
    return sorted(texts)


def _bounded(batches: Iterable[Any], bound: _Unfolding) -> Iterator[Any]:
    """The batches, in slices that unfold to little enough to be made at a time."""
    for batch in batches:
        size = sum(map(_unfolded_bytes, batch.columns))
        bound.add(size)
        rows = max(1, batch.num_rows * BATCH_BYTES // max(size, BATCH_BYTES))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _unfolded_bytes(column: Any) -> int:
    """The size of a column's values once each reference to a text has become that text."""
    compute = import_extra("pyarrow.compute", extra="parquet", what="a table")
    types = import_extra("pyarrow.types", extra="parquet", what="a table")
    if types.is_dictionary(column.type) and _is_text(column.type.value_type):
        lengths = compute.binary_length(column.dictionary)
        return int(compute.sum(compute.cast(lengths.take(column.indices), "int64")).as_py() or 0)
    if types.is_nested(column.type):
        inside = column.flatten()
        return sum(map(_unfolded_bytes, inside if isinstance(inside, list) else [inside]))
    return int(column.nbytes)


def arrow_rows(batches: Iterable[Any], schema: Any, name: str) -> Iterator[NumberedRow]:
    """The rows of record batches or tables that share `schema`. Bytes are refused before the first row."""
    names: list[str] = schema.names
    counts = Counter(names)
    for field in schema:
        if counts[field.name] > 1:
            raise UsageError(f"{name}: two columns are called {field.name!r}")
        if _holds_bytes(field.type):
            raise UsageError(
                f"{name}: column {field.name!r} holds bytes ({field.type}), which a task row cannot; "
                f"leave the column out"
            )
    index = 0
    for batch in batches:
        columns = [_values(batch.column(field.name), field.name, name) for field in schema]
        for values in zip(*columns, strict=True):
            yield index, dict(zip(names, values, strict=True))
            index += 1


def _values(column: Any, field: str, name: str) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as problem:  # a date that Python has no value for
        raise UsageError(f"{name}: column {field!r} cannot be read: {problem}") from None
    return values


def _is_text(type: Any) -> bool:
    types = import_extra("pyarrow.types", extra="parquet", what="a table")
    return bool(types.is_string(type) or types.is_large_string(type))


def _holds_bytes(type: Any) -> bool:
    types = import_extra("pyarrow.types", extra="parquet", what="a table")
    if types.is_dictionary(type):
        return _holds_bytes(type.value_type)
    return bool(
        types.is_binary(type)
        or types.is_large_binary(type)
        or types.is_binary_view(type)
        or types.is_fixed_size_binary(type)
        or any(_holds_bytes(type.field(number).type) for number in range(type.num_fields))
    )
