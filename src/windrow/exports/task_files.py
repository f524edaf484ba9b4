"""The tasks of a run that are worth running again, as a task file: the rows as the run has read them, in their order."""

from __future__ import annotations

from array import array
from pathlib import Path

import msgspec

from windrow.errors import UsageError
from windrow.stats.profile import Profile, Range
from windrow.store.task_file import TASKS, read_known
from windrow.util.atomic_files import atomic_file
from windrow.util.directory_swap import standing


class TaskFileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """`kept` of the run's tasks are written. `ungraded` ones, tried or not, never are."""

    path: str
    tasks: int
    kept: int
    ungraded: int


def keep_tasks(
    run: str | Path, found: Profile, keep: Range, out: str | Path, *, overwrite: bool = False
) -> TaskFileSummary:
    """Write the tasks whose pass rate (or mean reward, as the profile goes) lies in `keep`, one row per line.

    A row is written as the run keeps it, so that its digest stays the same. The file appears whole or not at all, and
    not if no task is left to write.
    """
    source, target = standing(Path(run)) / TASKS, Path(out)
    if target.resolve().parent == Path(run).resolve():
        raise UsageError(f"--out {out} is in the run directory itself; give another place")
    if not source.exists():
        raise UsageError(f"{run} has no {TASKS}, so there are no rows to write")
    tasks = ungraded = 0
    chosen: list[array[int]] = [array("Q"), array("Q")]  # index and offset of each
    for offset, line in read_known(source):
        if line is None:
            continue
        tasks += 1
        value = found.value(line.digest, line.index)
        if value is None:
            ungraded += 1
        elif value in keep:
            chosen[0].append(line.index)
            chosen[1].append(offset)
    if not chosen[0]:
        return TaskFileSummary(path=str(out), tasks=tasks, kept=0, ungraded=ungraded)
    with atomic_file(target, overwrite=overwrite) as file, source.open("rb") as rows:
        for _, offset in sorted(zip(*chosen, strict=True)):
            rows.seek(offset)
            file.write(row_of(rows.readline()) + b"\n")
    return TaskFileSummary(path=str(out), tasks=tasks, kept=len(chosen[0]), ungraded=ungraded)


class _Row(msgspec.Struct):
    data: msgspec.Raw


_decode_row = msgspec.json.Decoder(_Row).decode


def row_of(line: bytes) -> bytes:
    """The row in a line of tasks.jsonl, byte for byte."""
    return bytes(_decode_row(line).data)
