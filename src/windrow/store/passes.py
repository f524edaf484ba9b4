"""Which pass (epoch, iteration) over the tasks a rollout is of: its record does not say so, but the id of its group does."""

from __future__ import annotations

from pathlib import Path

from windrow.errors import UsageError
from windrow.identity import group_id
from windrow.records import Rollout
from windrow.store.manifest import MANIFEST, Manifest
from windrow.store.task_file import TASKS, read_known
from windrow.util.directory_swap import standing
from windrow.util.hash_index import HashIndex

MOST_PASSES = 10_000


class Pass:
    """A pass over the tasks of a run. A rollout is of it if its group's id says so."""

    def __init__(self, run: Path, manifest: Manifest, number: int | None = None) -> None:
        """`number` None: that of the last call."""
        self.number = int(manifest.config.get("pass") or 0) if number is None else number
        self._groups = HashIndex("I")
        tasks = standing(run) / TASKS
        if not tasks.exists():
            return
        for _, line in read_known(tasks):
            if line is not None:
                group = group_id(
                    source=line.source,
                    split=line.split,
                    digest=line.digest,
                    occurrence=line.occurrence,
                    pass_=self.number,
                    behaviour=manifest.behaviour.hash,
                )
                self._groups.set(group, 0)

    def __contains__(self, rollout: Rollout) -> bool:
        return self._groups.get(rollout.group) is not None


class Passes:
    """Those of a run up to that of its last call. What none of them knows is of the last."""

    def __init__(self, run: Path, manifest: Manifest) -> None:
        self._run = run
        self._manifest = manifest
        self._last = int(manifest.config.get("pass") or 0)
        if self._last > MOST_PASSES:
            raise UsageError(
                f"config.pass in {run / MANIFEST} is {self._last:,}: too many passes to look through; correct it, or say with "
                f"--iteration which pass it is"
            )
        self._known: dict[int, Pass] = {}

    def of(self, rollout: Rollout) -> int:
        if not self._last:  # the only one that there can be, most of the time
            return 0
        passes = range(self._last, -1, -1)
        return next((number for number in passes if rollout in self._pass(number)), self._last)

    def _pass(self, number: int) -> Pass:
        if number not in self._known:
            self._known[number] = Pass(self._run, self._manifest, number)
        return self._known[number]
