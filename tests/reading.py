"""Reading task files in tests: bytes in, tasks or one error out."""

from __future__ import annotations

from pathlib import Path

from windrow.envs.problem import Problem
from windrow.errors import UsageError
from windrow.records import Task
from windrow.tasks.rows import open_rows
from windrow.tasks.scan import Source, scan


def scanned(path: str | Path, *, skip_invalid: bool = False, name: str = "tasks") -> Source:
    """The file as the `problem` environment takes it."""
    return scan(open_rows(str(path)), name=name, check=Problem.check_row, skip_invalid=skip_invalid)


def tasks_in(path: str | Path) -> list[Task]:
    source = scanned(path)
    return [source.task(position) for position in range(len(source))]


def refusal(path: str | Path) -> str:
    """The error that the file gives."""
    try:
        source = scanned(path)
    except UsageError as problem:
        return str(problem)
    raise AssertionError(f"{path} was read as {len(source)} tasks")
