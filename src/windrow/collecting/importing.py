"""`windrow import`: a run made of attempts that another system has written, also where it was broken off.

The run is opened as `collect` opens it, with the same options, so that its ids are those that `collect` computes and the
same command continues it. Attempts that the run has already are left alone: importing the same files again adds nothing.

An integration implements `Importer` for its files; everything here is the same for all of them.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from windrow.collecting.collection import Collection, Summary, Warn
from windrow.collecting.opening import open_collection
from windrow.collecting.resolve import ResolvedRun
from windrow.engine.context import RunContext
from windrow.errors import UsageError
from windrow.records import Json, Rollout, Task
from windrow.tasks.plan import Slot

BATCH = 256  # attempts that share a write
SHOWN = 5


class ImportedAttempt(msgspec.Struct, frozen=True):
    """An attempt that was played elsewhere: at which task, as which of its samples, and whether it failed."""

    where: str
    task: int
    sample: int
    failed: bool
    content: dict[str, Json]
    raw: bytes  # attempts are the same if these are

    @property
    def name(self) -> str:
        return f"rollout {self.sample} of task {self.task}"


class UnreadableLine(msgspec.Struct, frozen=True):
    """A line that is left out, and why; nothing is lost with a `blank` one."""

    where: str
    why: str
    blank: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


class Importer(ABC):
    """The files that another system has written for one run."""

    inputs: Path  # the tasks that they are of

    @abstractmethod
    def parts(self) -> Iterable[Iterator[ImportedAttempt | UnreadableLine]]:
        """The attempts, a failed one before those that followed it. A part is committed before the next is begun.

        Asked twice, and the same both times.
        """

    @abstractmethod
    def has_other_input(self, attempt: ImportedAttempt, task: Task) -> bool:
        """Whether the attempt was given another input than the task has."""

    @abstractmethod
    async def rollout(
        self, attempt: ImportedAttempt, slot: Slot, context: RunContext, *, unjudged: bool
    ) -> Rollout:
        """The attempt as a record of this slot, graded. ValueError says why it cannot be written down.

        `unjudged`: no later attempt of the slot follows, so that one without a verdict may wait for it.
        """


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an import. The run had `skipped` attempts already."""

    rollouts: int
    failures: int
    skipped: int
    summary: Summary


async def import_run(resolved: ResolvedRun, importer: Importer, on_warning: Warn | None = None) -> Imported:
    """Commit the attempts into the slots of the run that `collect` would make of `resolved`.

    Raises UsageError before anything is written if they contradict the inputs, each other, or the run that is there.
    """
    if resolved.matches:
        raise UsageError("what another system has written has one seat; it cannot be imported as a match")
    slots = _SlotNumbers(resolved)
    overview = _Overview(importer, slots)
    overview.refuse()
    collection = open_collection(resolved, on_warning=on_warning)
    try:
        for message in overview.warnings():
            collection.warn(message)
        return await _Import(collection, importer, slots, overview).run()
    finally:
        collection.close()


class _SlotNumbers:
    """The slots of numbered tasks."""

    def __init__(self, resolved: ResolvedRun) -> None:
        tasks = resolved.tasks
        self._positions = {tasks.index(position): position for position in range(len(tasks))}
        self._samples = resolved.run.samples

    def problem(self, attempt: ImportedAttempt) -> str | None:
        """Why there is no slot for an attempt."""
        if attempt.task not in self._positions:
            return "no input is for it"
        if attempt.sample >= self._samples:
            return f"-k {self._samples} has no place for it; -k {attempt.sample + 1} has"
        return None

    def number(self, attempt: ImportedAttempt) -> int:
        return self._positions[attempt.task] * self._samples + attempt.sample


class _Overview:
    """A first reading of all attempts: which slots have a rollout, how often each has failed, and the problems."""

    def __init__(self, importer: Importer, slots: _SlotNumbers) -> None:
        self.done: dict[int, tuple[str, bytes]] = {}  # by slot: where its rollout is, and a hash of it
        self.failed: Counter[int] = Counter()
        self._unreadable: list[str] = []
        self._contradicting: list[str] = []
        self._without_slot: list[str] = []
        self._blank = self._repeated = 0
        for part in importer.parts():
            for attempt in part:
                if isinstance(attempt, UnreadableLine):
                    self._blank += attempt.blank
                    self._unreadable += [] if attempt.blank else [str(attempt)]
                elif (why := slots.problem(attempt)) is not None:
                    self._without_slot.append(f"{attempt.where}: {attempt.name}: {why}")
                elif attempt.failed:
                    self.failed[slots.number(attempt)] += 1
                else:
                    self._add_rollout(slots.number(attempt), attempt)

    def _add_rollout(self, number: int, attempt: ImportedAttempt) -> None:
        earlier, hashed = self.done.get(number), hashlib.sha256(attempt.raw).digest()
        if earlier is None:
            self.done[number] = (attempt.where, hashed)
        elif earlier[1] == hashed:
            self._repeated += 1
        else:
            self._contradicting.append(
                f"{attempt.where}: {attempt.name} is at {earlier[0]}, too, and says something else"
            )

    def refuse(self) -> None:
        """Raise UsageError for attempts that contradict the inputs or each other."""
        if self._without_slot:
            raise UsageError(
                _listed(self._without_slot) + "\nGive the inputs that they were made from: --inputs FILE"
            )
        if self._contradicting:
            raise UsageError(_listed(self._contradicting) + "\nLeave one of each in the file")

    def warnings(self) -> Iterator[str]:
        """The lines that are left out."""
        if self._unreadable:
            yield f"left out, to be collected anew:\n{_listed(self._unreadable)}"
        if self._blank:
            yield f"{self._blank:,} blank {'line is' if self._blank == 1 else 'lines are'} passed over"
        if self._repeated:
            what = "line stands" if self._repeated == 1 else "lines stand"
            yield f"{self._repeated:,} {what} there again, word for word: taken once"


class _Import:
    """One import under way."""

    def __init__(
        self, collection: Collection, importer: Importer, slots: _SlotNumbers, overview: _Overview
    ) -> None:
        self._collection = collection
        self._importer = importer
        self._slots = slots
        self._overview = overview
        self._before: dict[int, int] = {}  # attempts that the run had of a slot; -1: it was done
        self._failed: Counter[int] = Counter()
        self._added: set[int] = set()
        self._rollouts = self._failures = self._skipped = 0
        self._other_inputs: list[str] = []
        self._unwritable: list[str] = []

    async def run(self) -> Imported:
        for part in self._importer.parts():
            while batch := list(islice(part, BATCH)):
                attempts = (attempt for attempt in batch if isinstance(attempt, ImportedAttempt))
                await asyncio.gather(*(self._add(attempt) for attempt in attempts))
        if self._unwritable:
            self._collection.warn(f"left out, to be collected anew:\n{_listed(self._unwritable)}")
        if self._other_inputs:
            self._collection.warn(
                f"{_given_otherwise(len(self._other_inputs))}; the first is {self._other_inputs[0]}. What was said is kept"
            )
        summary = self._collection.save()
        return Imported(
            rollouts=self._rollouts, failures=self._failures, skipped=self._skipped, summary=summary
        )

    async def _add(self, attempt: ImportedAttempt) -> None:
        number, failed = self._slots.number(attempt), attempt.failed
        before = self._attempts_before(number)
        self._failed[number] += failed
        attempt_number = self._failed[number] if failed else max(before, self._overview.failed[number]) + 1
        if not failed:
            if number in self._added:  # the same line again
                return
            self._added.add(number)
        if before < 0 or (failed and attempt_number <= before):
            self._skipped += 1
            return
        slot = self._collection.plan.slot(number, attempt_number)
        if self._importer.has_other_input(attempt, slot.task):
            self._other_inputs.append(attempt.where)
        last = number not in self._overview.done and attempt_number == self._overview.failed[number]
        try:
            rollout = await self._importer.rollout(
                attempt, slot, self._collection.resolved.context, unjudged=last
            )
        except (ValueError, RecursionError) as problem:
            self._unwritable.append(f"{attempt.where}: cannot be written down: {problem}")
            return
        unusable = not failed and rollout.status in ("failed", "cancelled")
        if unusable and before > self._overview.failed[number]:
            self._skipped += 1  # it is among the attempts already, and no more use the second time
            return
        await self._collection.add(slot, rollout)
        self._failures += failed or unusable
        self._rollouts += not (failed or unusable)

    def _attempts_before(self, number: int) -> int:
        if number not in self._before:
            ledger = self._collection.ledger
            self._before[number] = -1 if ledger.is_done(number) else ledger.next_attempt(number) - 1
        return self._before[number]


def _given_otherwise(count: int) -> str:
    if count == 1:
        return "1 rollout says that it was given another input than its row has"
    return f"{count:,} rollouts say that they were given other inputs than their rows have"


def _listed(problems: Sequence[str]) -> str:
    more = [f"… and {len(problems) - SHOWN:,} more"] if len(problems) > SHOWN else []
    return "\n".join([*problems[:SHOWN], *more])
