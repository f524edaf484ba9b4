"""The counts of a merged run, as `windrow collect` would leave them in run.json."""

from __future__ import annotations

from collections.abc import Callable, Set
from pathlib import Path
from typing import Protocol

import msgspec

from windrow.errors import UsageError, WindrowError
from windrow.records import OPPONENT
from windrow.store.manifest import MANIFEST, Manifest, write_manifest
from windrow.store.reader import RunReader
from windrow.store.resume import ResumeState
from windrow.store.task_file import TASKS, KnownTasks
from windrow.tasks.plan import Plan
from windrow.util.disk import Disk

MOST_SLOTS = 1 << 32

Warn = Callable[[str], None]


class Measurer(Protocol):
    """Measures a merged run and writes the numbers beside its logs. The caller of a merge hands it in."""

    @property
    def files(self) -> Set[str]:
        """The names of the files that `measure` may write. Older ones are removed from the run that is merged into."""

    def measure(self, folder: Path, disk: Disk, warn: Warn) -> int:
        """Measure the run in `folder`, write the files, and return how many rollouts are ungraded.

        Raises WindrowError where the run cannot be measured.
        """

    def moved(self, run: Path) -> None:
        """The files were renamed into `run`, and nothing else happened to them."""


def write_counts(
    folder: Path,
    manifest: Manifest,
    disk: Disk,
    *,
    measurer: Measurer,
    agents: Set[str],
    matches: bool,
    sign: Callable[[Manifest], Manifest],
    warn: Warn,
) -> Manifest:
    """Measure the logs in `folder`, write run.json there, and return the manifest with its counts.

    `agents` are those that have played in the run.
    """
    write_manifest(folder, sign(manifest), disk)
    ledger = _resume_state(folder, manifest, graded=False).ledger
    counts = {
        "planned": ledger.size,
        "done": ledger.done_count,
        "failed": ledger.final_failure_count,
        "pending": ledger.pending_count,
    }
    players = [agent for agent in agents if agent != OPPONENT]
    # With several agents, or in matches, nobody knows which agent a planned rollout belongs to.
    planned = {players[0]: ledger.size} if len(players) == 1 and not matches else {}
    manifest = msgspec.structs.replace(manifest, counts=counts, agents=planned)
    write_manifest(folder, sign(manifest), disk)
    try:
        ungraded = measurer.measure(folder, disk, warn)
    except WindrowError as problem:
        warn(f"no metrics.json: {problem}")
        ungraded = _resume_state(folder, manifest, graded=True).ungraded_count
    manifest = sign(msgspec.structs.replace(manifest, counts={**counts, "ungraded": ungraded}))
    write_manifest(folder, manifest, disk)
    return manifest


def _resume_state(folder: Path, manifest: Manifest, *, graded: bool) -> ResumeState:
    """The resume state of all tasks in the run. With `graded` it also counts missing verdicts, which takes longer."""
    tasks = KnownTasks(folder / TASKS)
    samples = manifest.config.get("samples", 1)
    if len(tasks) * samples > MOST_SLOTS:
        tasks.close()
        raise UsageError(
            f"config.samples in {MANIFEST} of one of the runs is {samples:,}: more than can be planned. Correct it, or leave that run "
            f"out"
        )
    plan = Plan(
        tasks,
        samples=samples,
        pass_=manifest.config.get("pass", 0),
        behaviour=manifest.behaviour.hash,
        split=manifest.split,
    )
    resume_state = ResumeState(plan, RunReader(folder))
    try:
        resume_state.read_logs(manifest.grading if graded else None, None)
    finally:
        resume_state.close()
        tasks.close()
    return resume_state
