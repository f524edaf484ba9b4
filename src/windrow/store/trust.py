"""How far a command may act on what a run names: import it, start it, send something to it, read the variable.

Reading never acts on any of it. `replay`, `rescore` and `stats --write` act on what run.json names if the run is this
user's own (`signing`), and on anything that the run names with `--trust-run`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from windrow.records import Json, Task
from windrow.registry import is_import_path
from windrow.store.manifest import Manifest, generations_of
from windrow.store.signing import is_own, signed_tasks, tasks_digest
from windrow.store.task_file import TASKS, read_task, read_tasks, tasks_in_order
from windrow.util.directory_swap import standing


class RunTrust:
    """What may be acted on of all that the run at `path` names. `given`: the user has said --trust-run."""

    def __init__(self, path: Path, manifest: Manifest, *, given: bool = False) -> None:
        self._path = standing(path)
        self._manifest = manifest
        self._given = given
        self.acts = given or is_own(self._path, manifest)  # on what run.json names

    def may_import(self, name: str) -> bool:
        """Whether an environment or agent of this name may be looked up. Names of installed parts always may."""
        return not is_import_path(name) or self._given or name in self._own_names or name in self._row_names

    def holds_row(self, task: Task) -> bool:
        """Whether the row of `task`, read from a line, is one that this user's command has put into the run."""
        if self._given:
            return True
        if not self._own_rows:
            return False
        offset = read_tasks(self._path / TASKS).get(task.digest)
        return offset is not None and read_task(self._path / TASKS, offset).data == task.data

    @cached_property
    def _own_names(self) -> frozenset[Json]:
        """The environments and agents in a run.json of this user's own."""
        if not self.acts:
            return frozenset()
        return frozenset(_names(self._manifest))

    @cached_property
    def _row_names(self) -> frozenset[Json]:
        """The environments and agents in rows of this user's own."""
        if not self._own_rows:
            return frozenset()
        rows = (task.data or {} for task in tasks_in_order(self._path / TASKS))
        return frozenset(
            name for row in rows for key in ("env", "agent") if isinstance(name := row.get(key), str)
        )

    @cached_property
    def _own_rows(self) -> bool:
        return (
            self.acts
            and (self._path / TASKS).exists()
            and signed_tasks(self._manifest) == tasks_digest(self._path)
        )


def _names(manifest: Manifest) -> Iterator[Json]:
    for section in (manifest.config, manifest.behaviour.of):
        for part in ("env", "agent"):
            yield (section.get(part) or {}).get("name")
    for generation in generations_of(manifest):
        yield generation.of.get("env")
        for entry in generation.of.get("scorers") or ():
            yield entry.get("env")
