"""Hugging Face data sets (the extra `hf`): `hf:NAME[:CONFIG][@REVISION]` with a split, or a local directory.

A data set from the hub is named as it is written; a directory is named by its last component.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windrow.config import nearest
from windrow.errors import UsageError
from windrow.registry import import_extra
from windrow.tasks.arrow import BATCH_ROWS, arrow_rows
from windrow.tasks.spool import SpooledRows

PREFIX = "hf:"


def open_hub(path: str, *, split: str | None) -> tuple[SpooledRows, str]:
    """Return the rows of one split, by index, and the data set's name."""
    name, config, revision = _parsed(path)
    directory = Path(name).expanduser()
    local = directory.is_dir()
    if not local and name.startswith((".", "/", "~")):
        raise UsageError(f"{path}: there is no directory {name}")
    if local and revision is not None:
        raise UsageError(f"{path}: a directory has no revision, so @{revision} would be ignored")
    if split is None:
        raise UsageError(f"{path} needs a split: give --split, such as --split test")
    datasets = import_extra("datasets", extra="hf", what=path)
    with _quiet(datasets):
        try:
            if local and _saved(directory):
                dataset = _from_disk(datasets, path, directory, config, split)
            else:
                target = str(directory) if local else name
                dataset = datasets.load_dataset(target, config, split=split, revision=revision)
        except UsageError:
            raise
        except Exception as problem:  # whatever the network, the hub or a file's reader has to say
            raise UsageError(f"cannot load {path}, split {split!r}: {_said(problem)}") from problem
        table = dataset.with_format("arrow")
        numbered_rows = arrow_rows(table.iter(batch_size=BATCH_ROWS), table.features.arrow_schema, path)
        rows = SpooledRows(numbered_rows, f"{path} {split}", label="index")
    source = directory.resolve().name if local else name
    return rows, source + (f":{config}" if config else "") + (f"@{revision}" if revision else "")


def _parsed(path: str) -> tuple[str, str | None, str | None]:
    """Return NAME, CONFIG and REVISION. An existing directory takes precedence over any other reading of its name."""
    text = path.removeprefix(PREFIX)
    if text and Path(text).expanduser().is_dir():
        return text, None, None
    rest, at, revision = text.partition("@")
    name, colon, config = rest.partition(":")
    if not name or (colon and not config) or (at and not revision):
        raise UsageError(f"{path}: expected hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG@REVISION")
    return name, config or None, revision or None


def _saved(directory: Path) -> bool:
    """Whether the directory was written by `save_to_disk`, which `load_dataset` does not read."""
    return any((directory / name).exists() for name in ("dataset_dict.json", "state.json"))


def _from_disk(datasets: Any, path: str, directory: Path, config: str | None, split: str) -> Any:
    if config is not None:
        raise UsageError(f"{path}: a saved data set has no configurations, so :{config} would be ignored")
    loaded = datasets.load_from_disk(str(directory))
    splits = loaded if isinstance(loaded, dict) else {str(loaded.split or split): loaded}
    if split not in splits:
        raise UsageError(f"{path}: no split {split!r}{nearest(split, splits)} (known: {', '.join(splits)})")
    return splits[split]


def _said(problem: BaseException) -> str:
    """Return the error with its cause in one line: `datasets` names the bad file only in the cause."""
    text = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
    return text if problem.__cause__ is None else f"{text}: {_said(problem.__cause__)}"


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Turn off the package's progress bars: the command has its own display."""
    if datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()
