"""Task sources in tests: whatever a path may be, through the library's door, and back as tasks or one error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windrow.collecting.resolve import Prepared, prepare
from windrow.config import load_config
from windrow.engine.components import Parts
from windrow.errors import UsageError
from windrow.policies import Policy
from windrow.records import Task


def prepared(
    tasks: Any, *, config: tuple[Path, ...] = (), sets: tuple[str, ...] = (), **options: Any
) -> Prepared:
    """A run of these tasks as it stands before the first request."""
    named = isinstance(tasks, str | Path)
    if named:
        options["tasks"] = str(tasks)
    return prepare(load_config(config, options, sets), Parts(policy=Policy(), rows=None if named else tasks))


def tasks_of(tasks: Any, **options: Any) -> list[Task]:
    source = prepared(tasks, **options).source
    return [source.task(position) for position in range(len(source))]


def refusal(tasks: Any, **options: Any) -> str:
    """The usage error that these tasks give."""
    try:
        found = prepared(tasks, **options)
    except UsageError as problem:
        return str(problem)
    raise AssertionError(f"{tasks} was read as {len(found.source)} tasks")
