"""The plan, which lists tasks × samples lazily and finishes groups early; and the ledger, which records the slots
that are done.

Slot number n is sample n % k of the task at position n // k. Ten million slots cost one bit each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Protocol

import msgspec

from windrow.identity import digest, group_id, group_namer, rollout_id, seed_of
from windrow.records import Task

MAX_DATA_BYTES = 8 * 1024


class TaskList(Protocol):
    """Tasks by position, each read when it is asked for."""

    def __len__(self) -> int: ...
    def identity(self, position: int) -> tuple[str, int]: ...
    def source(self, position: int) -> str: ...
    def task(self, position: int) -> Task: ...
    def digest(self) -> str:
        """The same for the same tasks in the same order."""


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to be made: its names, its task, and the task as the record carries it."""

    number: int
    id: str
    attempt: int
    group: str
    sample: int
    seed: int
    task: Task
    recorded_task: Task


class PackedLedger(msgspec.Struct, frozen=True, array_like=True):
    """A ledger in few bytes."""

    done: bytes
    tried: dict[int, Annotated[int, msgspec.Meta(ge=0, le=2**62)]]
    final_failures: list[int]

    def is_of(self, size: int) -> bool:
        """Return whether the ledger fits a plan of `size` slots and names no slot beyond it."""
        last = max((*self.tried, *self.final_failures, int.from_bytes(self.done, "little").bit_length() - 1))
        first = min((*self.tried, *self.final_failures, 0))
        return len(self.done) == (size + 7) // 8 and first >= 0 and last < size


class Ledger:
    """One bit per slot that is done; and the highest attempt of each slot that was tried and is not done."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.done_count = 0
        self._done = bytearray((size + 7) // 8)
        self._tried: dict[int, int] = {}
        self._final_failures: set[int] = set()

    @classmethod
    def unpack(cls, packed: PackedLedger, size: int) -> Ledger:
        ledger = cls(size)
        ledger._done = bytearray(packed.done)
        ledger.done_count = int.from_bytes(packed.done, "little").bit_count()
        ledger._tried, ledger._final_failures = dict(packed.tried), set(packed.final_failures)
        return ledger

    def packed(self) -> PackedLedger:
        return PackedLedger(bytes(self._done), dict(self._tried), sorted(self._final_failures))

    def is_done(self, number: int) -> bool:
        return bool(self._done[number >> 3] & (1 << (number & 7)))

    def mark_done(self, number: int) -> None:
        if not self.is_done(number):
            self._done[number >> 3] |= 1 << (number & 7)
            self.done_count += 1
        self._final_failures.discard(number)

    def mark_all_done(self, first: int, bits: int) -> None:
        """Mark slot `first` + n for each bit n."""
        start, shift = first >> 3, first & 7
        if (
            not shift and bits < 256 and not self._final_failures
        ):  # so it is for nearly all, with eight samples
            before = self._done[start]
            self._done[start] = after = before | bits
            self.done_count += (before ^ after).bit_count()
            return
        end = start + (shift + bits.bit_length() + 7) // 8
        before = int.from_bytes(self._done[start:end], "little")
        after = before | bits << shift
        if after != before:
            self._done[start:end] = after.to_bytes(end - start, "little")
            self.done_count += (after ^ before).bit_count()
        if self._final_failures:
            self._final_failures.difference_update(
                first + n for n in range(bits.bit_length()) if bits >> n & 1
            )

    def mark_tried(self, number: int, attempt: int, *, again: bool) -> None:
        """Record an attempt. `again` tells whether the slot is run once more if it is not done."""
        if attempt < self._tried.get(number, 0):
            return
        self._tried[number] = attempt
        if again:
            self._final_failures.discard(number)
        elif not self.is_done(number):
            self._final_failures.add(number)

    def reopen(self, number: int, attempt: int) -> None:
        """Run a slot again although it is settled (`--redo`)."""
        if self.is_done(number):
            self._done[number >> 3] &= ~(1 << (number & 7))
            self.done_count -= 1
        self.mark_tried(number, attempt, again=True)

    def forget_done_attempts(self) -> None:
        """Drop the attempt numbers of slots that are done: they are not needed any more."""
        self._tried = {number: attempt for number, attempt in self._tried.items() if not self.is_done(number)}

    def next_attempt(self, number: int) -> int:
        return self._tried.get(number, 0) + 1

    def is_pending(self, number: int) -> bool:
        return not self.is_done(number) and number not in self._final_failures

    @property
    def pending_count(self) -> int:
        return self.size - self.done_count - len(self._final_failures)

    @property
    def retry_count(self) -> int:
        """Count the slots that were tried before, are not done, and will be tried again."""
        return sum(1 for number in self._tried if self.is_pending(number))

    @property
    def final_failure_count(self) -> int:
        return len(self._final_failures)


class Plan:
    def __init__(self, tasks: TaskList, *, samples: int, pass_: int, behaviour: str, split: str | None):
        self.tasks = tasks
        self.samples = samples
        self._pass = pass_
        self._behaviour = behaviour
        self._split = split

    def __len__(self) -> int:
        return len(self.tasks) * self.samples

    def group(self, position: int) -> str:
        name, occurrence = self.tasks.identity(position)
        return group_id(
            source=self.tasks.source(position),
            split=self._split,
            digest=name,
            occurrence=occurrence,
            pass_=self._pass,
            behaviour=self._behaviour,
        )

    def digest(self) -> str:
        """The same for the same slots in the same order."""
        return digest([self.tasks.digest(), self.samples, self._pass, self._behaviour, self._split])

    def groups(self) -> Iterator[str]:
        """The groups of all tasks, by position."""
        tasks = self.tasks
        source = None
        for position in range(len(tasks)):
            if (task_source := tasks.source(position)) != source:
                source = task_source
                name = group_namer(
                    source=source, split=self._split, pass_=self._pass, behaviour=self._behaviour
                )
            yield name(*tasks.identity(position))

    def slot(self, number: int, attempt: int = 1) -> Slot:
        position = number // self.samples
        task = self.tasks.task(position)
        return self._slot(number, attempt, self.group(position), task, recorded_task(task))

    def pending(self, ledger: Ledger) -> Iterator[Slot]:
        """Slots still to be run, task by task."""
        for position in range(len(self.tasks)):
            group = task = recorded = None
            for number in range(position * self.samples, (position + 1) * self.samples):
                if not ledger.is_pending(number):
                    continue
                if group is None or task is None or recorded is None:
                    group, task = self.group(position), self.tasks.task(position)
                    recorded = recorded_task(task)
                yield self._slot(number, ledger.next_attempt(number), group, task, recorded)

    def by_agent(
        self, ledger: Ledger, agents_of: Callable[[Task], Mapping[str, int]]
    ) -> tuple[Counter[str], Counter[str]]:
        """Count the rollouts of each agent, and the pending slots that it drives. This reads every task.

        `agents_of` returns the agents of a task's episode, each with its seats; the first one drives the episode.
        """
        planned: Counter[str] = Counter()
        pending: Counter[str] = Counter()
        for position in range(len(self.tasks)):
            agents = agents_of(self.tasks.task(position))
            first = position * self.samples
            for agent, seats in agents.items():
                planned[agent] += self.samples * seats
            pending[next(iter(agents))] += sum(map(ledger.is_pending, range(first, first + self.samples)))
        return planned, pending

    def _slot(self, number: int, attempt: int, group: str, task: Task, recorded: Task) -> Slot:
        sample = number % self.samples
        id = rollout_id(group, sample)
        return Slot(
            number=number,
            id=id,
            attempt=attempt,
            group=group,
            sample=sample,
            seed=seed_of(id, attempt),
            task=task,
            recorded_task=recorded,
        )


def retried(slot: Slot) -> Slot:
    """Return the same slot with the next attempt number."""
    attempt = slot.attempt + 1
    return msgspec.structs.replace(slot, attempt=attempt, seed=seed_of(slot.id, attempt))


def recorded_task(task: Task) -> Task:
    """Return the task as a rollout carries it: a large row stands only in tasks.jsonl, under its digest."""
    if len(msgspec.json.encode(task.data)) <= MAX_DATA_BYTES:
        return task
    return msgspec.structs.replace(task, data=None)
