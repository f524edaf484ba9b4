"""`--reuse-prepared`: what a loader found is kept, and taken again while its input is the same.

It is kept in the cache under the spelling of the input, with a digest of what the input is: the bytes of a file, or of all files of a
directory, the source of a function; a hub's name and revision stand for themselves. An input that has changed is refused, never taken
for the old one. What cannot be read twice, such as a pipe, is not kept; what was kept and is not as it was any more is prepared anew.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from pathlib import Path

import msgspec

from windrow.errors import UsageError
from windrow.identity import digest, source_hash
from windrow.registry import cache_home, resolve
from windrow.tasks.loaders import is_function, open_source
from windrow.tasks.rows import BadRow, RowFile, Rows

STANDARD_INPUT = "-"


class _Record(msgspec.Struct):
    """What was kept of an input: the name of the data set, and the digests of what was read and of what is kept."""

    name: str
    input: str
    kept: str


def open_kept(path: str, split: str | None) -> tuple[Rows, str]:
    """As `open_source`, from what is kept of the same input; what is not kept yet is, if every row can be read."""
    now = None if path == STANDARD_INPUT else _digest(path)
    if now is None:
        return open_source(path, split=split)
    prepared_file = _prepared_file(path, split)
    record = _record(prepared_file)
    if record is not None and record.input != now:
        raise UsageError(
            f"{path} has changed since its tasks were prepared; leave out --reuse-prepared to prepare them anew"
        )
    if record is not None and _file_digest(prepared_file) == record.kept:
        return RowFile(prepared_file.open("rb"), path, label="index"), record.name
    rows, name = open_source(path, split=split)
    try:
        kept = _keep(prepared_file, rows, name, now)
    except OSError as problem:
        rows.close()
        raise UsageError(
            f"--reuse-prepared cannot keep the tasks of {path} in {prepared_file.parent}: {problem.strerror or problem}; WINDROW_CACHE "
            f"names another place"
        ) from None
    if not kept:
        return rows, name
    rows.close()
    return RowFile(prepared_file.open("rb"), path, label="index"), name


def open_anew(path: str, split: str | None) -> tuple[Rows, str]:
    """As `open_source`; what was kept of the input is forgotten."""
    if path != STANDARD_INPUT:
        _prepared_file(path, split).with_suffix(".json").unlink(missing_ok=True)
    return open_source(path, split=split)


def _prepared_file(path: str, split: str | None) -> Path:
    return cache_home() / "prepared" / f"{digest([os.path.abspath('.'), path, split])}.jsonl"


def _digest(path: str) -> str | None:
    """What an input is; None where that cannot be told without using it up."""
    file = Path(path) if Path(path).exists() else Path(path.removeprefix("hf:")).expanduser()
    if file.is_file():
        return _file_digest(file)
    if file.is_dir():
        files = sorted(one for one in file.rglob("*") if one.is_file())
        return digest([[str(one.relative_to(file)), _file_digest(one)] for one in files])
    if file.exists():
        return None
    if is_function(path):
        function = resolve("loader", path, {})
        return str(source_hash(inspect.unwrap(function)) if callable(function) else None)
    return path


def _file_digest(file: Path) -> str | None:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def _record(prepared_file: Path) -> _Record | None:
    try:
        return msgspec.json.decode(prepared_file.with_suffix(".json").read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError):
        return None


def _keep(prepared_file: Path, rows: Rows, name: str, now: str) -> bool:
    """Whether all rows could be kept: a bad one is to be reported by its own place."""
    prepared_file.parent.mkdir(parents=True, exist_ok=True)
    draft = prepared_file.with_suffix(f".{os.getpid()}")
    try:
        with draft.open("wb") as file:
            for row in rows:
                if isinstance(row, BadRow):
                    return False
                file.write(msgspec.json.encode(row.data) + b"\n")
        kept = _file_digest(draft)
        draft.replace(prepared_file)
    finally:
        draft.unlink(missing_ok=True)
    draft.write_bytes(msgspec.json.encode(_Record(name, now, str(kept))))
    draft.replace(prepared_file.with_suffix(".json"))
    return True
