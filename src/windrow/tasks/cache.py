"""`--reuse-prepared`: the rows of a loader are cached, and reused while its input is unchanged.

The cache is keyed by the spelling of the input. It holds a digest of the input: of the bytes of a file, of all files
of a directory, or of the source of a function; the name and revision of a hub data set stand for themselves. An input
that has changed is refused, and never mistaken for the old one. An input that cannot be read twice, such as a pipe,
is not cached. A cached file that was altered is prepared anew.
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
from windrow.util.disk import make_private, opener_in

STANDARD_INPUT = "-"


class _Record(msgspec.Struct):
    """The record beside a cached file: the name of the data set, and the digests of the input and of the cached rows."""

    name: str
    input: str
    kept: str


def open_kept(path: str, split: str | None) -> tuple[Rows, str]:
    """Do as `open_source`, but use the cached rows of the same input. Rows that are not cached yet are, if all can be
    read.
    """
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
    """Do as `open_source`, and drop the cached rows of the input."""
    if path != STANDARD_INPUT:
        _prepared_file(path, split).with_suffix(".json").unlink(missing_ok=True)
    return open_source(path, split=split)


def _prepared_file(path: str, split: str | None) -> Path:
    return cache_home() / "prepared" / f"{digest([os.path.abspath('.'), path, split])}.jsonl"


def _digest(path: str) -> str | None:
    """Return a digest of the input, or None if reading it would use it up."""
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
    """Cache the rows; return False if one is bad, because the original loader reports bad rows by their own location."""
    folder = prepared_file.parent
    folder.mkdir(parents=True, exist_ok=True)
    make_private(folder)  # rows may be of a file that only this user can read
    draft = prepared_file.with_suffix(f".{os.getpid()}")
    try:
        with open(draft, "wb", opener=opener_in(folder)) as file:
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
