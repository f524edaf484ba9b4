"""Loads any task source through the public API: tasks or one error come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windrow.collecting.resolve import ResolvedRun, resolve
from windrow.config import load_config
from windrow.engine.components import Overrides
from windrow.errors import UsageError
from windrow.policies import Policy
from windrow.records import Task


def resolved(
    tasks: Any, *, config: tuple[Path, ...] = (), sets: tuple[str, ...] = (), **options: Any
) -> ResolvedRun:
    """A run of these tasks as it stands before the first request."""
    named = isinstance(tasks, str | Path)
    if named:
        options["tasks"] = str(tasks)
    return resolve(
        load_config(config, options, sets), Overrides(policy=Policy(), rows=None if named else tasks)
    )


def tasks_of(tasks: Any, **options: Any) -> list[Task]:
    source = resolved(tasks, **options).source
    return [source.task(position) for position in range(len(source))]


def refusal(tasks: Any, **options: Any) -> str:
    """The usage error that these tasks give."""
    try:
        found = resolved(tasks, **options)
    except UsageError as problem:
        return str(problem)
    raise AssertionError(f"{tasks} was read as {len(found.source)} tasks")
