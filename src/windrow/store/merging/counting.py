"""How far a merged run is, in numbers: run.json and metrics.json as `windrow collect` would leave them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Set
from pathlib import Path

import msgspec

from windrow.errors import WindrowError
from windrow.records import OPPONENT, encode
from windrow.stats.metrics import Metrics, survey, write_metrics
from windrow.store.reader import RunReader
from windrow.store.resume import ResumeState
from windrow.store.run_directory import MANIFEST, TASKS, Manifest
from windrow.store.task_file import KnownTasks
from windrow.tasks.plan import Plan
from windrow.util.disk import Disk


def count(
    folder: Path,
    manifest: Manifest,
    disk: Disk,
    *,
    agents: Set[str],
    matches: bool,
    warn: Callable[[str], None],
) -> Manifest:
    """Write both, for the logs in `folder`; the manifest with its counts. `agents` are those that have played there."""
    _write(folder, manifest, disk)
    resume_state = _resume_state(folder, manifest, graded=False)
    ledger = resume_state.ledger
    counts = {
        "planned": ledger.size,
        "done": ledger.done_count,
        "failed": ledger.final_failure_count,
        "pending": ledger.pending_count,
    }
    own = [agent for agent in agents if agent != OPPONENT]
    planned = (
        {own[0]: ledger.size} if len(own) == 1 and not matches else {}
    )  # else nobody knows whose is what
    manifest = msgspec.structs.replace(manifest, counts=counts, agents=planned)
    _write(folder, manifest, disk)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of lines that do not hold what they should: each reader of the run is told
            found = survey(folder, warn=warn)
        write_metrics(folder, found, disk)
        ungraded = _ungraded(found.metrics)
    except WindrowError as problem:
        warn(f"no metrics.json: {problem}")
        ungraded = _resume_state(folder, manifest, graded=True).ungraded
    manifest = msgspec.structs.replace(manifest, counts={**counts, "ungraded": ungraded})
    _write(folder, manifest, disk)
    return manifest


def _resume_state(folder: Path, manifest: Manifest, *, graded: bool) -> ResumeState:
    """What the logs say of all tasks that are known; with `graded`, also what lacks a verdict, which takes longer."""
    tasks = KnownTasks(folder / TASKS)
    plan = Plan(
        tasks,
        samples=manifest.config.get("samples", 1),
        pass_=manifest.config.get("pass", 0),
        behaviour=manifest.behaviour.hash,
        split=manifest.split,
    )
    resume_state = ResumeState(plan, RunReader(folder))
    try:
        resume_state.learn(manifest.grading if graded else None, None)
    finally:
        resume_state.close()
        tasks.close()
    return resume_state


def _ungraded(metrics: Metrics) -> int:
    grades = [entry.agent_metrics.grade.count for entry in metrics.agents if entry.agent != OPPONENT]
    return sum(grade["pending"] + grade["failed"] for grade in grades)


def _write(folder: Path, manifest: Manifest, disk: Disk) -> None:
    disk.replace(folder / MANIFEST, msgspec.json.format(encode(manifest), indent=2) + b"\n")
