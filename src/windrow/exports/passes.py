"""Which pass (iteration) over the tasks a rollout is of: its record does not say so, but the id of its group does."""

from __future__ import annotations

from pathlib import Path

from windrow.bridges.webgym.iterations import Iteration
from windrow.records import Rollout
from windrow.store.directory import Manifest


class Passes:
    """Those of a run up to that of its last call. What none of them knows is of the last."""

    def __init__(self, run: Path, manifest: Manifest) -> None:
        self._run = run
        self._manifest = manifest
        self._last = int(manifest.config.get("pass") or 0)
        self._known: dict[int, Iteration] = {}

    def of(self, rollout: Rollout) -> int:
        if not self._last:  # the only one that there can be, most of the time
            return 0
        passes = range(self._last, -1, -1)
        return next((number for number in passes if rollout in self._iteration(number)), self._last)

    def _iteration(self, number: int) -> Iteration:
        if number not in self._known:
            self._known[number] = Iteration(self._run, self._manifest, number)
        return self._known[number]
