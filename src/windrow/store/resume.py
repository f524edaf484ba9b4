"""The resume state of a run: which slots of a plan its logs show as done or tried, and which rollouts lack a verdict."""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from windrow.errors import StoreError
from windrow.identity import rollout_id
from windrow.records import ErrorRecord, Grading, Rollout, decode_rollout
from windrow.store.folding import (
    Graded,
    expected_group_scorers,
    expected_scorers,
    is_ungraded,
    missing_scorers,
)
from windrow.store.gradings import Gradings
from windrow.store.ledger_index import LedgerIndex
from windrow.store.line_heads import Head
from windrow.store.line_positions import LinePosition, LinePositions
from windrow.store.manifest import Fingerprint
from windrow.store.rank_progress import Redo
from windrow.store.reader import RunReader
from windrow.store.resume_index import SegmentIndex
from windrow.store.segments import segments
from windrow.store.verdict_index import VerdictIndex, Verdicts
from windrow.store.where import parse_where
from windrow.tasks.plan import Ledger, PackedLedger, Plan, Slot
from windrow.util.disk import Disk
from windrow.util.hash_index import HashIndex


class AttemptOutcome(Graded, Protocol):
    """What decides whether a slot is done, may be tried again, or lacks a verdict: of a rollout or of one seat of it."""

    @property
    def done(self) -> bool: ...
    @property
    def error(self) -> ErrorRecord | None: ...


class ResumeState:
    """How far a run is: what earlier calls left behind, once `read_logs` has been called, and what this call adds.

    With `groups`, the rollouts that settled a group before this call are remembered, and `group_members` returns them.
    With `indexed`, the part that depends on the plan is also taken from this writer's indexes.
    """

    def __init__(
        self,
        plan: Plan,
        reader: RunReader | None = None,
        *,
        groups: bool = False,
        indexed: bool = False,
        writer: str | None = None,
    ) -> None:
        self.ledger = Ledger(len(plan))
        self.ungraded_lines = LinePositions()
        self.ungraded_count = 0
        self.unreadable_lines: list[str] = []  # one message per slot that is run again because of its line
        self.indexes: dict[str, SegmentIndex] = {}  # by segment, as `read_logs` has read them
        self._reader = reader
        self._indexed = indexed
        self._writer = writer
        self._entered: tuple[LedgerIndex, PackedLedger] | None = None  # still to be saved
        self._gradings: Gradings | None = None
        self._verdict_index: VerdictIndex | None = None  # only where every slot is settled
        self._plan = plan
        self._samples = plan.samples
        self._groups = groups
        self._positions: HashIndex | None = None  # by group, once one is asked for
        self._members: array[int] | None = None  # by slot: 1 + where its line stands, or 0
        self._ungraded_groups: dict[int, None] = {}  # by position, in log order
        self._known_group: str | None = None
        self._known_position = 0

    def read(self, line_position: LinePosition) -> Rollout:
        """A rollout of an earlier call, with the scores that count now."""
        assert self._reader is not None
        assert self._gradings is not None
        return self._reader.folded(self._reader.read(line_position), self._gradings)

    def group_members(self, group: str) -> list[Rollout]:
        """The rollouts that settled the slots of a group before this call."""
        position = self._position(group) if self._members is not None else None
        if self._members is None or position is None:
            return []
        first = position * self._samples
        return [
            rollout
            for packed in self._members[first : first + self._samples]
            if packed
            for rollout in self._seats(self.ungraded_lines.unpack(packed - 1))
        ]

    def ungraded_groups(self) -> Iterator[str]:
        """Groups that were settled before this call and lack a verdict."""
        for position in self._ungraded_groups:
            yield self._plan.group(position)

    @property
    def ungraded_group_count(self) -> int:
        return len(self._ungraded_groups)

    def missing_scorers(self, rollout: Rollout, expected: Sequence[str]) -> tuple[str, ...]:
        """The scorers whose verdict the rollout lacks."""
        gradings = self._gradings.of(rollout.key) if self._gradings is not None else []
        return missing_scorers(rollout, expected, gradings)

    def has_verdicts(self, slot: Slot) -> bool:
        """Whether there are verdicts on this attempt although the log lacks its line. Its number must not be used again:
        the verdicts would be taken for those of the new attempt."""
        gradings = self._gradings
        if not gradings:  # None, or empty
            return False
        ids = (slot.id, rollout_id(slot.group, slot.sample, 0))
        return any((id, slot.attempt) in gradings for id in ids)

    def add_gradings(self, rollout: Rollout, gradings: Sequence[Grading]) -> None:
        """Add gradings that were just made, so that they count when the rollout is read again with its group."""
        if self._members is not None and self._gradings is not None:
            self._gradings.extend(rollout.key, gradings)

    def add_attempt(self, slot: Slot, outcomes: Sequence[AttemptOutcome]) -> None:
        """Count an attempt that this call has committed. The seats of an episode are done together, or fail together."""
        self.ungraded_count += sum(map(is_ungraded, outcomes))
        first = outcomes[0]
        if first.done:
            self.ledger.mark_done(slot.number)
        else:
            again = first.error is None or first.error.retryable
            self.ledger.mark_tried(slot.number, slot.attempt, again=again)

    def count_graded(self, before: Sequence[Graded], now: Sequence[Graded]) -> None:
        """Count the rollouts that were just graded: `before` and `now` are the same ones."""
        self.ungraded_count += sum(map(is_ungraded, now)) - sum(map(is_ungraded, before))

    def _seats(self, line_position: LinePosition) -> list[Rollout]:
        """The rollouts of the episode that begins at this line: one, or one per seat, on consecutive lines."""
        assert self._reader is not None
        rollouts = [self.read(line_position)]
        for _ in range(1, rollouts[0].seats or 1):
            size = len(self._reader.line(line_position))
            line_position = LinePosition(line_position.segment, line_position.offset + size)
            rollouts.append(self.read(line_position))
        return rollouts

    def close(self) -> None:
        if self._reader is not None:
            self._reader.__exit__()

    def read_logs(self, grading: Fingerprint | None, redo: Redo | None) -> None:
        """Read the lines that the indexes do not cover yet. The whole log is read only for a redo, for rollouts that may
        lack a verdict, and for groups that this call is to complete."""
        reader = self._reader
        assert reader is not None
        unverified = False
        for index in reader.indexes():
            self.indexes[index.segment] = index
            unverified = unverified or _may_lack_verdicts(index, grading)
        self._enter(reader.path)
        if unverified and redo is None and self._was_judged(reader, grading):
            return
        self._gradings = reader.gradings()
        reopened = self._chosen(reader, redo) if redo is not None else {}
        for number, attempt in reopened.items():
            self.ledger.reopen(number, attempt)
        self.ledger.forget_done_attempts()
        if unverified or (self._groups and self.ledger.done_count and self.ledger.pending_count):
            self._find_leftovers(reader, grading, reopened)
        if self._members is None:
            self._positions = None

    def save_indexes(self, disk: Disk) -> None:
        """Save what `read_logs` has found out, for the next call."""
        for index in self.indexes.values():
            index.save(disk)
        if self._entered is not None:
            ledger_index, ledger = self._entered
            ledger_index.save(ledger, disk)
            self._entered = None
        if self._verdict_index is not None and not self._has_leftovers():
            assert self._reader is not None
            bad = [line for line in self._reader.bad_lines if line.segment not in self.indexes]
            self._verdict_index.save(Verdicts(self.ungraded_count, bad), disk)

    def _has_leftovers(self) -> bool:
        return bool(len(self.ungraded_lines) or self._ungraded_groups or self.unreadable_lines)

    def _was_judged(self, reader: RunReader, grading: Fingerprint | None) -> bool:
        """Whether every slot is settled and an earlier call saw that no verdict is missing in these very logs."""
        if not self._indexed or self.ledger.pending_count:
            return False
        self._verdict_index = VerdictIndex(
            reader.path,
            self._writer,
            plan=self._plan.digest(),
            grading=(grading.hash, grading.generation) if grading is not None else None,
            segments=self.indexes.values(),
            scores=segments(reader.path, "scores"),
        )
        verdicts = self._verdict_index.found()
        if verdicts is None:
            return False
        self._verdict_index = self._positions = None
        self.ungraded_count = verdicts.ungraded
        reader.note(verdicts.bad_lines)
        return True

    def _enter(self, run: Path) -> None:
        """Enter the slots that the segments settle in the ledger."""
        indexes = [*self.indexes.values()]
        ledger_index = None
        if self._indexed and any(index.size for index in indexes):
            ledger_index = LedgerIndex(run, self._writer, plan=self._plan.digest(), segments=indexes)
            packed = ledger_index.found()
            if packed is not None and packed.is_of(len(self._plan)):
                self.ledger = Ledger.unpack(packed, len(self._plan))
                return
        for index in indexes:
            self._apply(index)
        if ledger_index is not None:
            self._entered = ledger_index, self.ledger.packed()

    def _apply(self, index: SegmentIndex) -> None:
        """Enter the slots of the plan that one segment settles or tries."""
        samples, mark, find = self._samples, self.ledger.mark_all_done, self._position
        for group, first, bits in index.settled():
            position = find(group)
            if position is not None and first < samples:
                mark(position * samples + first, bits & (1 << samples - first) - 1)
        for (group, sample), tried in index.tried.items():
            position = find(group)
            if position is not None and sample < samples:
                self.ledger.mark_tried(position * samples + sample, tried.attempt, again=tried.again)

    def _number(self, line: Head | Rollout) -> int | None:
        """The number of a line's slot, or None if the plan does not have it."""
        if line.sample >= self._samples:
            return None
        if line.group != self._known_group:  # the lines of a group stand close together
            position = self._position(line.group)
            if position is None:
                return None
            self._known_group, self._known_position = line.group, position
        return self._known_position * self._samples + line.sample

    def _position(self, group: str) -> int | None:
        if self._positions is None:
            self._positions = HashIndex.numbering(self._plan.groups(), len(self._plan.tasks))
        return self._positions.get(group)

    def _chosen(self, reader: RunReader, redo: Redo) -> dict[int, int]:
        """The slots that `--redo` reopens, each with its highest attempt: those that matched among the lines that were in
        the log when the redo began, and were not done again since."""
        assert self._gradings is not None
        where = parse_where(redo.where)
        chosen: set[int] = set()
        for _, rollout in reader.finals(decode_rollout, sizes=redo.sizes):
            number = self._number(rollout)
            if number is not None:
                folded = reader.folded(reader.with_row(rollout), self._gradings)
                if where(msgspec.to_builtins(folded)):
                    chosen.add(number)
        highest = dict.fromkeys(chosen, 0)
        for line_position, head in reader.heads():
            number = self._number(head)
            if number not in chosen:
                continue
            highest[number] = max(head.attempt, highest[number])
            if head.done and line_position.offset >= redo.sizes.get(line_position.segment, 0):
                chosen.discard(number)
        return {number: highest[number] for number in chosen}

    def _find_leftovers(
        self, reader: RunReader, grading: Fingerprint | None, reopened: Container[int]
    ) -> None:
        """Find the settled rollouts that lack a verdict, and those that a group will need. A slot that is reopened
        contributes its old rollout until it is done again."""
        for line_position, head in reader.finals():
            number = self._number(head)
            if number is None or not head.done:
                continue
            settled = self.ledger.is_done(number)
            if not settled and number not in reopened:
                continue
            if self._groups and not head.seat:
                if self._members is None:
                    self._members = array("Q", bytes(8 * len(self._plan)))
                self._members[number] = 1 + self.ungraded_lines.packed(line_position)
            if settled and grading is None:  # only its environment can score it
                self.ungraded_count += is_ungraded(head)
            elif settled and grading is not None and _lacks_grade(head, grading):
                try:
                    self._find_missing(line_position, number - head.sample, grading)
                except StoreError as problem:
                    self.unreadable_lines.append(str(problem))
                    self.ledger.reopen(number, head.attempt)
                    if self._members is not None:
                        self._members[number] = 0

    def _find_missing(self, line_position: LinePosition, first: int, grading: Fingerprint) -> None:
        """Note the verdicts that a rollout lacks. Its group begins at the slot `first`."""
        rollout = self.read(line_position)
        missing = self.missing_scorers(rollout, expected_scorers(grading.of, rollout.env))
        of_groups = expected_group_scorers(grading.of, rollout.env)
        if any(name not in of_groups for name in missing):
            self.ungraded_lines.append(line_position)
        if any(name in of_groups for name in missing) and not self._is_open(first):
            self._ungraded_groups[first // self._samples] = None
        self.ungraded_count += is_ungraded(rollout)

    def _is_open(self, first: int) -> bool:
        """Whether this call will run a slot of the group that begins there."""
        return any(map(self.ledger.is_pending, range(first, first + self._samples)))


def _may_lack_verdicts(index: SegmentIndex, grading: Fingerprint | None) -> bool:
    """Whether the lines of a segment do not tell by themselves that every settled rollout has its verdicts."""
    return index.ungraded or index.seats or (grading is not None and not index.gradings <= {grading.hash})


def _lacks_grade(head: Head, grading: Fingerprint | None) -> bool:
    """Whether a line does not tell by itself that the rollout has its verdicts."""
    return is_ungraded(head) or (grading is not None and head.grading != grading.hash)
