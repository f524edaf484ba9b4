"""Where tasks are read from, by what the path is.

    -                                   standard input: JSON lines or a JSON array
    tasks.jsonl, tasks.json             (and any other name) the same, from a file
    tasks.csv, tasks.tsv                a header line, then one row a line; all values are text
    tasks.parquet                       extra `parquet`
    hf:NAME[:CONFIG][@REVISION]         extra `hf`; also hf:./directory
    NAME:…                              the loader NAME of an integration
    module:function                     a function that yields dicts; it is given `split` if it takes it

A file that exists wins over `module:function`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from windrow.errors import UsageError
from windrow.registry import declared, resolve
from windrow.tasks.rows import Rows, open_rows
from windrow.tasks.spool import NumberedRow, SpooledRows

_FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def open_source(path: str, *, split: str | None) -> tuple[Rows, str]:
    """Return the rows, and the name of the data set unless the user gives another."""
    if path == "-":
        return open_rows(path), "stdin"
    file = Path(path)
    if path.startswith("hf:") and not file.exists():
        from windrow.tasks.hub import open_hub

        return open_hub(path, split=split)
    package, colon, _ = path.partition(":")
    if colon and package in declared("loaders") and not file.exists():
        opened: tuple[Rows, str] = resolve("loader", package, {})(path)
        return opened
    if is_function(path):
        return _open_function(path, split), path
    return _open_file(path), file.stem


def describe_sources() -> str:
    """List the kinds of paths that tasks are read from, for help and errors."""
    named = ", ".join(f"{name}:NAME" for name in ("hf", *declared("loaders")))
    return f"a .jsonl, .json, .csv, .tsv or .parquet file, {named}, module:function, or - for standard input"


def is_function(path: str) -> bool:
    """Return whether a path is `module:function`."""
    return _FUNCTION.fullmatch(path) is not None and not Path(path).exists()


def _open_file(path: str) -> Rows:
    suffix = Path(path).suffix.lower()
    if not Path(path).is_dir():
        if suffix in (".csv", ".tsv"):
            from windrow.tasks.delimited import open_delimited

            return open_delimited(path)
        if suffix == ".parquet":
            from windrow.tasks.arrow import open_parquet

            return open_parquet(path)
    return open_rows(path)


def _open_function(path: str, split: str | None) -> SpooledRows:
    try:
        function = resolve("loader", path, {})
    except UsageError as problem:
        raise UsageError(f"{problem} (and there is no file {path})") from problem.__cause__
    if not callable(function):
        raise UsageError(f"loader {path!r} is not a function that yields dicts")
    return SpooledRows(_called(function, path, split), path, label="index")


def _called(function: Callable[..., Any], path: str, split: str | None) -> Iterator[NumberedRow]:
    """Yield the rows of a function. An exception of the function is shown to the user under the loader's name."""
    arguments = _arguments(function, path, split)
    try:
        rows: Any = function(**arguments)
        if inspect.iscoroutine(rows):
            rows.close()
        if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | dict):
            raise UsageError(f"loader {path!r} returned {type(rows).__name__}; expected an iterable of dicts")
        yield from enumerate(rows)
    except UsageError:
        raise
    except Exception as problem:
        raise UsageError(f"loader {path!r} raised {type(problem).__name__}: {problem}") from problem


def _arguments(function: Callable[..., Any], path: str, split: str | None) -> dict[str, Any]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {}  # a built-in that does not say what it takes: it is called with nothing
    arguments = {"split": split} if "split" in signature.parameters and split is not None else {}
    try:
        signature.bind(**arguments)
    except TypeError as problem:
        hint = "; give --split" if "split" in str(problem) else ""
        raise UsageError(
            f"loader {path!r} cannot be called with {arguments or 'no arguments'}: {problem}{hint}"
        ) from None
    return arguments
