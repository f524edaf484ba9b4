"""Arrow tables as rows: Parquet files (the extra `parquet`) and data sets that the package `datasets` has loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from windrow.errors import UsageError
from windrow.registry import import_extra
from windrow.tasks.rows import cannot_read
from windrow.tasks.spool import NumberedRow, SpooledRows

BATCH_ROWS = 1024


def open_parquet(path: str) -> SpooledRows:
    """Return the rows of a Parquet file, by index; the file is read one batch at a time."""
    parquet = import_extra("pyarrow.parquet", extra="parquet", what=f"reading {path}")
    try:
        with open(path, "rb") as file, parquet.ParquetFile(file) as table:
            numbered_rows = arrow_rows(table.iter_batches(batch_size=BATCH_ROWS), table.schema_arrow, path)
            return SpooledRows(numbered_rows, path, label="index")
    except OSError as problem:
        raise cannot_read(path, problem) from None
    except import_extra("pyarrow", extra="parquet", what=path).ArrowException as problem:
        raise UsageError(f"{path} is not a readable Parquet file: {problem}") from None


def arrow_rows(batches: Iterable[Any], schema: Any, name: str) -> Iterator[NumberedRow]:
    """The rows of record batches or tables that share `schema`. Bytes are refused before the first row."""
    names: list[str] = schema.names
    for field in schema:
        if names.count(field.name) > 1:
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
