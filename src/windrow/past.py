"""The past of a run: what its log says of a plan. What is done, what was tried, what is to be graded."""

from __future__ import annotations

import msgspec

from windrow.records import AttemptId, Grading, Rollout, decode_rollout
from windrow.store.directory import Fingerprint, Redo
from windrow.store.fold import expected_scorers, missing_scorers
from windrow.store.read import Head, Place, RunReader
from windrow.store.where import parse_where
from windrow.tasks.plan import Ledger, Plan


class Past:
    """What earlier calls have left. `earlier` are settled members of groups that this call will complete."""

    def __init__(self, plan: Plan, reader: RunReader | None = None) -> None:
        self.ledger = Ledger(len(plan))
        self.to_grade: list[Place] = []
        self.ungraded = 0
        self.earlier: dict[tuple[str, int], Place] = {}
        self.gradings: dict[AttemptId, list[Grading]] = reader.gradings() if reader else {}
        self._reader = reader
        self._samples = plan.samples
        self._positions = (
            {plan.group(position): position for position in range(len(plan.tasks))} if reader else {}
        )

    def read(self, place: Place) -> Rollout:
        """A rollout of an earlier call, with the scores that count now."""
        assert self._reader is not None
        return self._reader.folded(self._reader.read(place), self.gradings)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.__exit__()

    def learn(self, grading: Fingerprint | None, redo: Redo | None) -> None:
        """Go through the log: three passes at the most, one line at a time."""
        reader = self._reader
        assert reader is not None
        highest: dict[int, int] = {}
        for _, head in reader.heads():
            number = self._number(head)
            if number is None:
                continue
            if redo is not None:
                highest[number] = max(head.attempt, highest.get(number, 0))
            if head.done:
                self.ledger.mark_done(number)
            else:
                again = head.error is None or head.error.retryable
                self.ledger.mark_tried(number, head.attempt, again=again)
        if redo is not None:
            for number in self._chosen(reader, redo):
                self.ledger.reopen(number, highest[number])
        self.ledger.forget_done_attempts()
        self._find_leftovers(reader, grading)
        self._positions = {}

    def _number(self, line: Head | Rollout) -> int | None:
        """The slot of a line, if it is one of the plan's."""
        position = self._positions.get(line.group)
        if position is None or line.sample >= self._samples:
            return None
        return position * self._samples + line.sample

    def _chosen(self, reader: RunReader, redo: Redo) -> set[int]:
        """`--redo`: what matched among the lines that stood there when it was asked for, and was not done since."""
        where = parse_where(redo.where)
        chosen: set[int] = set()
        for _, rollout in reader.finals(decode_rollout, sizes=redo.sizes):
            number = self._number(rollout)
            folded = reader.folded(reader.with_row(rollout), self.gradings)
            if number is not None and where(msgspec.to_builtins(folded)):
                chosen.add(number)
        for place, head in reader.heads():
            if head.done and place.offset >= redo.sizes.get(place.segment, 0):
                number = self._number(head)
                if number is not None:
                    chosen.discard(number)
        return chosen

    def _find_leftovers(self, reader: RunReader, grading: Fingerprint | None) -> None:
        """Settled rollouts that lack a verdict, and those that a group of this call will need."""
        for place, head in reader.finals():
            number = self._number(head)
            if number is None or not self.ledger.is_done(number) or not head.done:
                continue
            first = number - head.sample
            if any(self.ledger.is_pending(first + sample) for sample in range(self._samples)):
                self.earlier[head.group, head.sample] = place
            if grading is not None and (head.grading != grading.hash or head.grade in ("pending", "failed")):
                rollout = self.read(place)
                if missing_scorers(rollout, expected_scorers(grading.of, rollout.env)):
                    self.to_grade.append(place)
                self.ungraded += rollout.grade in ("pending", "failed")
