"""`nemo-gym`: a run as the complete set of NeMo Gym's files. `FILE.jsonl` has the rollouts; beside it are the
materialised inputs, the failures, the reward profile, and the metrics.

Every attempt that failed, or that could not be judged, is a line of the failures. Memory holds the lines of one task
at a time, and eight bytes per measured number.
"""

from __future__ import annotations

import math
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

import msgspec

from windrow.errors import ExportError
from windrow.exports.base import Example, Exporter, Invalid, Unfit
from windrow.integrations.nemo_gym.files import (
    RequestSettings,
    failure_row,
    files_of,
    input_row,
    success_row,
    task_input,
)
from windrow.integrations.nemo_gym.results import given_params
from windrow.integrations.nemo_gym.reward_profiles import AgentProfile, TaskProfile, numbers
from windrow.integrations.nemo_gym.rows import PARAMS, TASK_INDEX, agent_of
from windrow.records import Json, Rollout
from windrow.store.reader import RunReader
from windrow.store.task_file import TASKS, tasks_in_order
from windrow.util.token_contexts import BrokenContext

NO_INPUT = "tasks that only a prompt template gives an input, which was not rendered for them: they are to be collected with it"

_encode = msgspec.json.Encoder().encode


class NemoGym(Exporter):
    every_attempt = True

    def beside(self, out: Path) -> Sequence[Path]:
        return files_of(out)

    def begin(self, run: Path, beside: Sequence[BinaryIO]) -> None:
        self._inputs, self._failures, self._profile, self._agent_file, self._aggregate = beside
        reader = RunReader(run)
        of = reader.manifest.behaviour.of
        settings = (reader.manifest.config.get("agent") or {}).get("settings") or {}
        self._samples = samples_of(reader)
        self._asked = RequestSettings(
            sampling=of.get("sampling") or {},
            over_rows=frozenset(of.get("sampling_over_rows") or ()),
            seeds=of.get("seeds") == "sample",
            overrides=settings.get(PARAMS) or {},
        )
        self._agent = str(settings.get("agent") or (of.get("agent") or {}).get("name"))
        self._tasks = self._listed(reader.folder / TASKS)
        self._next = next(self._tasks, None)
        self._task: TaskProfile | None = None
        self._slot: tuple[int, int] | None = None
        self._done: tuple[Rollout, dict[str, Json]] | None = None  # the slot's last attempt that ended well
        self._ready: list[Any] = []  # lines that the next rollout, whatever becomes of it, gives out
        self._failed = 0  # attempts of the slot that did not
        self._agents: dict[str, AgentProfile] = {}
        self._entries: dict[str, IO[bytes]] = {}

    def rows(self, example: Example) -> list[Any]:
        rollout = example.rollout
        if rollout.seat is not None:
            raise Unfit("seats of a match")
        if rollout.sample >= self._samples:
            raise Unfit(f"samples beyond the run's {self._samples}")
        if (rollout.task.index, rollout.sample) != self._slot:
            self._close_slot()
            self._reach(rollout.task.index)
            self._slot, self._failed = (rollout.task.index, rollout.sample), 0
        if rollout.status == "cancelled":
            raise Unfit("cancelled")
        if rollout.status == "failed" or rollout.grade == "failed":
            self._failures.write(_encode(self._line(rollout, failure_row)) + b"\n")
            self._failed += 1
        elif rollout.reward is None:
            raise Unfit("not graded")
        else:
            self._done = rollout, self._line(rollout, success_row)
        ready, self._ready = self._ready, []
        return ready

    def _line(self, rollout: Rollout, form: Callable[..., dict[str, Json]]) -> dict[str, Json]:
        try:
            return form(rollout, failures=self._failed, seeds=self._asked.seeds)
        except (BrokenContext, IndexError, AttributeError, TypeError, struct.error):
            raise Invalid("rollouts whose turns, tokens or state do not fit together") from None

    def rest(self) -> Iterator[Any]:
        self._close_slot()
        self._reach(None)
        yield from self._ready
        self._write_metrics()

    def _listed(self, path: Path) -> Iterator[TaskProfile]:
        """Yield every task of the run in order; the inputs of its rollouts are written when it is reached."""
        last: int | None = None
        for task in tasks_in_order(path) if path.exists() else ():
            if task.index == last:
                raise ExportError(f"two tasks of the run have the index {last}, which is to number them")
            last = task.index
            yield TaskProfile(task.index, task_input(task, self._asked, self._agent), self._samples, [])

    def _reach(self, index: int | None) -> None:
        """Advance to this task, or past the last one; close the tasks before it."""
        while self._next is not None and (index is None or self._next.number <= index):
            if self._task is not None:
                self._close_task(self._task)
            self._task, self._next = self._next, next(self._tasks, None)
        if index is None and self._task is not None:
            self._close_task(self._task)
        elif index is not None and (self._task is None or self._task.number != index):
            raise Unfit("of a task that is not in tasks.jsonl")

    def _close_slot(self) -> None:
        """Make the line of the slot's final attempt ready, if that attempt ended well."""
        done, self._done = self._done, None
        if done is None or self._task is None:
            return
        rollout, line = done
        self._task.add(rollout.sample, numbers(line, rollout.task.data or {}))
        if not self._task.sample[PARAMS].get("input"):  # a prompt template made it
            self._task.sample[PARAMS] = given_params(rollout)
        self._ready.append(line)

    def _close_task(self, task: TaskProfile) -> None:
        name = agent_of(task.sample) or self._agent
        if not task.sample[PARAMS].get("input"):
            self.notes[NO_INPUT] += 1
        for sample in range(task.expected):
            line = input_row(task.sample, task.number, sample, self._asked)
            self._inputs.write(_encode(line) + b"\n")
        entry = task.entry()
        self._profile.write(_encode({**entry, "sample": task.sample}) + b"\n")
        if name not in self._agents:
            self._agents[name] = AgentProfile()
            self._entries[name] = tempfile.TemporaryFile()
        self._agents[name].add(task)
        joint = b",\n" if self._entries[name].tell() else b"\n"
        self._entries[name].write(joint + _encode({TASK_INDEX: task.number, **entry}))

    def _write_metrics(self) -> None:
        """Write both files of metrics, one entry per agent; the entries of its tasks are copied, not held in memory."""
        named = {name: self._agents[name].metrics() for name in sorted(self._agents)}
        listed = [{**metrics, "agent_ref": {"name": name}} for name, metrics in named.items()]
        self._agent_file.write(_encode(listed) + b"\n")
        for number, (name, metrics) in enumerate(named.items()):
            key = {field: value for field, value in metrics.items() if field.startswith("mean/")}
            head: dict[str, Json] = {
                "agent_ref": {"name": name},
                "agent_metrics": metrics,
                "key_metrics": key,
            }
            self._aggregate.write(b"[" if number == 0 else b",\n")
            self._aggregate.write(_encode(head)[:-1] + b',"group_level_metrics":[')
            entries = self._entries[name]
            entries.seek(0)
            shutil.copyfileobj(entries, self._aggregate)
            entries.close()
            self._aggregate.write(b"]}")
        self._aggregate.write(b"]\n" if named else b"[]\n")


def samples_of(reader: RunReader) -> int:
    """Return the number of rollouts per task from the last call, or from the log if it was not recorded."""
    if math.isfinite(reader.samples):
        return int(reader.samples)
    return 1 + max((head.sample for _, head in reader.heads()), default=0)
