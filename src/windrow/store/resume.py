"""The past of a run: what its log says of a plan. What is done, what was tried, what is to be graded."""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

import msgspec

from windrow.errors import StoreError
from windrow.identity import rollout_id
from windrow.records import Grading, Rollout, decode_rollout
from windrow.store.folding import expected_group_scorers, expected_scorers, is_ungraded, missing_scorers
from windrow.store.gradings import Gradings
from windrow.store.ledger_index import LedgerIndex
from windrow.store.line_heads import Head
from windrow.store.line_places import Place, Places
from windrow.store.rank_progress import Redo
from windrow.store.reader import RunReader, segments
from windrow.store.resume_index import SegmentIndex
from windrow.store.run_directory import Fingerprint
from windrow.store.verdict_index import VerdictIndex, Verdicts
from windrow.store.where import parse_where
from windrow.tasks.plan import Ledger, PackedLedger, Plan, Slot
from windrow.util.disk import Disk
from windrow.util.hash_index import HashIndex


class ResumeState:
    """What earlier calls have left. With `groups`, the settled members of groups are found again: `members` gives
    them. `indexed`: what depends on the plan is taken from this writer's indexes, too."""

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
        self.to_grade = Places()
        self.ungraded = 0
        self.lost: list[str] = []  # what is to be run again, since its line cannot be read
        self.indexes: dict[str, SegmentIndex] = {}  # by segment, as `learn` has read them
        self._reader = reader
        self._indexed = indexed
        self._writer = writer
        self._entered: tuple[LedgerIndex, PackedLedger] | None = None  # to be kept
        self._gradings: Gradings | None = None
        self._verdict_index: VerdictIndex | None = None  # where everything is settled
        self._plan = plan
        self._samples = plan.samples
        self._groups = groups
        self._positions: HashIndex | None = None  # by group, once one is asked for
        self._members: array[int] | None = None  # by slot: 1 + where its line stands, or 0
        self._unjudged_groups: dict[int, None] = {}  # by position, in the order they were found
        self._known_group: str | None = None
        self._known_position = 0

    def read(self, place: Place) -> Rollout:
        """A rollout of an earlier call, with the scores that count now."""
        assert self._reader is not None
        assert self._gradings is not None
        return self._reader.folded(self._reader.read(place), self._gradings)

    def members(self, group: str) -> list[Rollout]:
        """The rollouts that settled the slots of a group before this call."""
        position = self._position(group) if self._members is not None else None
        if self._members is None or position is None:
            return []
        first = position * self._samples
        found = self._members[first : first + self._samples]
        return [
            rollout for place in found if place for rollout in self._seats(self.to_grade.place(place - 1))
        ]

    def unjudged_groups(self) -> Iterator[str]:
        """Groups that were settled before this call, and lack a verdict."""
        for position in self._unjudged_groups:
            yield self._plan.group(position)

    @property
    def unjudged_group_count(self) -> int:
        return len(self._unjudged_groups)

    def missing(self, rollout: Rollout, expected: Sequence[str]) -> tuple[str, ...]:
        """The scorers whose verdict it lacks."""
        gradings = self._gradings.of(rollout.key) if self._gradings is not None else []
        return missing_scorers(rollout, expected, gradings)

    def is_judged(self, slot: Slot) -> bool:
        """Whether an attempt that the log does not have was judged: its line was lost, and its number is not given
        again, or its verdicts would be taken for those of another."""
        gradings = self._gradings
        if not gradings:  # None, or empty
            return False
        ids = (slot.id, rollout_id(slot.group, slot.sample, 0))
        return any((id, slot.attempt) in gradings for id in ids)

    def judged(self, rollout: Rollout, gradings: Sequence[Grading]) -> None:
        """Gradings were made just now: they count when the rollout is read again, with its group."""
        if self._members is not None and self._gradings is not None:
            self._gradings.extend(rollout.key, gradings)

    def _seats(self, place: Place) -> list[Rollout]:
        """The rollouts of an episode, which begins there: one, or one a seat, one after the other."""
        assert self._reader is not None
        found = [self.read(place)]
        for _ in range(1, found[0].seats or 1):
            place = Place(place.segment, place.offset + len(self._reader.line(place)))
            found.append(self.read(place))
        return found

    def close(self) -> None:
        if self._reader is not None:
            self._reader.__exit__()

    def learn(self, grading: Fingerprint | None, redo: Redo | None) -> None:
        """Go through what the log has beyond its indexes, and through all of it only for a redo, for what lacks a verdict,
        and for groups that are to be completed."""
        reader = self._reader
        assert reader is not None
        unjudged = False
        for index in reader.indexes():
            self.indexes[index.segment] = index
            unjudged = unjudged or _may_lack_verdicts(index, grading)
        self._enter(reader.path)
        if unjudged and redo is None and self._was_judged(reader, grading):
            return
        self._gradings = reader.gradings()
        reopened = self._chosen(reader, redo) if redo is not None else {}
        for number, attempt in reopened.items():
            self.ledger.reopen(number, attempt)
        self.ledger.forget_done_attempts()
        if unjudged or (self._groups and self.ledger.done_count and self.ledger.pending_count):
            self._find_leftovers(reader, grading, reopened)
        if self._members is None:
            self._positions = None

    def save_indexes(self, disk: Disk) -> None:
        """Keep what was learned, for the next call."""
        for index in self.indexes.values():
            index.save(disk)
        if self._entered is not None:
            ledger_index, ledger = self._entered
            ledger_index.save(ledger, disk)
            self._entered = None
        if self._verdict_index is not None and not (len(self.to_grade) or self._unjudged_groups or self.lost):
            assert self._reader is not None
            bad = [line for line in self._reader.bad_lines if line.segment not in self.indexes]
            self._verdict_index.save(Verdicts(self.ungraded, bad), disk)

    def _was_judged(self, reader: RunReader, grading: Fingerprint | None) -> bool:
        """Whether everything is settled, and was seen to lack no verdict when the logs were as they are now."""
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
        found = self._verdict_index.found()
        if found is None:
            return False
        self._verdict_index = self._positions = None
        self.ungraded = found.ungraded
        reader.note(found.bad_lines)
        return True

    def _enter(self, run: Path) -> None:
        """Enter what the segments say of the plan in the ledger."""
        known = [*self.indexes.values()]
        ledger_index = None
        if self._indexed and any(index.size for index in known):
            ledger_index = LedgerIndex(run, self._writer, plan=self._plan.digest(), segments=known)
            found = ledger_index.found()
            if found is not None and found.is_of(len(self._plan)):
                self.ledger = Ledger.unpack(found, len(self._plan))
                return
        for index in known:
            self._apply(index)
        if ledger_index is not None:
            self._entered = ledger_index, self.ledger.packed()

    def _apply(self, index: SegmentIndex) -> None:
        """Enter what a segment says of the slots of the plan."""
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
        """The slot of a line, if it is one of the plan's."""
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
        """`--redo`: what matched among the lines that stood there when it was asked for, and was not done since; each slot
        with its highest attempt."""
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
        for place, head in reader.heads():
            number = self._number(head)
            if number not in chosen:
                continue
            highest[number] = max(head.attempt, highest[number])
            if head.done and place.offset >= redo.sizes.get(place.segment, 0):
                chosen.discard(number)
        return {number: highest[number] for number in chosen}

    def _find_leftovers(
        self, reader: RunReader, grading: Fingerprint | None, reopened: Container[int]
    ) -> None:
        """Settled rollouts that lack a verdict, and those that a group will need: of a slot that is reopened, what it
        has until it is done again."""
        for place, head in reader.finals():
            number = self._number(head)
            if number is None or not head.done:
                continue
            settled = self.ledger.is_done(number)
            if not settled and number not in reopened:
                continue
            if self._groups and not head.seat:
                if self._members is None:
                    self._members = array("Q", bytes(8 * len(self._plan)))
                self._members[number] = 1 + self.to_grade.packed(place)
            if settled and grading is None:  # only its environment could have scored it
                self.ungraded += is_ungraded(head)
            elif settled and grading is not None and _unjudged(head, grading):
                try:
                    self._find_missing(place, number - head.sample, grading)
                except StoreError as problem:
                    self.lost.append(str(problem))
                    self.ledger.reopen(number, head.attempt)
                    if self._members is not None:
                        self._members[number] = 0

    def _find_missing(self, place: Place, first: int, grading: Fingerprint) -> None:
        """What a rollout lacks, whose group begins at the slot `first`."""
        rollout = self.read(place)
        missing = self.missing(rollout, expected_scorers(grading.of, rollout.env))
        of_groups = expected_group_scorers(grading.of, rollout.env)
        if any(name not in of_groups for name in missing):
            self.to_grade.append(place)
        if any(name in of_groups for name in missing) and not self._is_open(first):
            self._unjudged_groups[first // self._samples] = None
        self.ungraded += is_ungraded(rollout)

    def _is_open(self, first: int) -> bool:
        """Whether this call will run a slot of the group that begins there."""
        return any(map(self.ledger.is_pending, range(first, first + self._samples)))


def _may_lack_verdicts(index: SegmentIndex, grading: Fingerprint | None) -> bool:
    """Whether the lines alone do not say how all that they settle was graded; of other seats it is not known."""
    return index.ungraded or index.seats or (grading is not None and not index.gradings <= {grading.hash})


def _unjudged(head: Head, grading: Fingerprint | None) -> bool:
    """Whether a line alone does not say how it was graded."""
    return is_ungraded(head) or (grading is not None and head.grading != grading.hash)
