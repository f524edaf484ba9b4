"""The selection of a rescore: which rollouts are judged, alone or with their group, and by which scorers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import msgspec

from windrow.envs.scoring import AnyScorer, GroupScorer
from windrow.grading.grading_pass import folded
from windrow.grading.groups import least_members
from windrow.grading.rescoring.progress import RescoreProgress
from windrow.grading.rescoring.resume import JudgedBefore, RescoreTarget
from windrow.records import Grading, Rollout, RolloutGroup, decode_rollout
from windrow.store.folding import GRADABLE, expected_scorers, is_ungraded, missing_scorers
from windrow.store.reader import RunReader
from windrow.store.segments import segments
from windrow.store.where import parse_where

FIRST_ATTEMPT = b'"attempt":1,'
BEGINNING_BYTES = 80  # of a line: its id and its attempt stand there


class Selection:
    """The rollouts or groups that `scorers` are to judge, except for what this rescore judged before it was cut short."""

    def __init__(
        self, reader: RunReader, scorers: Sequence[AnyScorer], target: RescoreTarget, min_group: float
    ) -> None:
        self._reader = reader
        self._mark, self._generation, self._in_place = target
        self._together = [scorer.name for scorer in scorers if isinstance(scorer, GroupScorer)]
        self._alone = [scorer.name for scorer in scorers if scorer.name not in self._together]
        self._least = least_members(reader.samples, min_group)
        self._selects = _condition(reader, self._mark.where, self._mark.failed_only)
        self._expected: dict[str, tuple[str, ...]] = {}
        self._done = JudgedBefore(reader, self._mark)
        self._gradings = reader.gradings(self._generation)

    @property
    def in_groups(self) -> bool:
        """Whether rollouts are judged together with their group."""
        return bool(self._together)

    def units(self, progress: RescoreProgress) -> Iterator[list[Rollout]]:
        """The rollouts that are to be judged: each by itself, or the members of a group together."""
        yield from self._groups(progress) if self._together else self._each(progress)
        progress.total = progress.read

    def _each(self, progress: RescoreProgress) -> Iterator[list[Rollout]]:
        for _, line in self._reader.finals(decode_rollout):
            progress.read += 1
            if line.status in GRADABLE and not line.opponent:
                rollout = self._reader.with_row(line)
                if self._is_chosen(rollout):
                    progress.chosen += 1
                    yield [rollout]
        self._reader.warn_of_bad_lines()

    def _groups(self, progress: RescoreProgress) -> Iterator[list[Rollout]]:
        for _, rollouts in groupby(self._reader.ordered(), lambda rollout: rollout.task.index):
            groups: dict[str, list[Rollout]] = {}
            for rollout in rollouts:
                progress.read += 1
                gradable = rollout.status in GRADABLE and not rollout.opponent
                if gradable and rollout.sample < self._reader.samples:
                    groups.setdefault(rollout.group, []).append(rollout)
            for members in groups.values():
                if len({rollout.sample for rollout in members}) < self._least:
                    progress.short += 1
                elif any(map(self._is_chosen, members)):
                    progress.chosen += len(members)
                    yield members

    def _is_chosen(self, rollout: Rollout) -> bool:
        """A rollout that this rescore has begun is judged to the end: its first verdicts may be why it is no longer
        selected."""
        return self._selects(rollout) or any(self._done.has(name, rollout.key) for name in self._alone)

    # -- by which scorers

    def scorers_of(self, rollout: Rollout) -> list[str]:
        """The scorers that are to judge a rollout by itself."""
        expected = self._again(rollout) if self._in_place else self.expected(rollout)
        return [name for name in self._alone if name in expected and not self._done.has(name, rollout.key)]

    def scorers_of_group(self, group: RolloutGroup) -> list[str]:
        """The scorers that are to judge a group, one after the other: each sees the scores of those before it."""
        expected = self.expected(group.rollouts[0])
        members = tuple(rollout.key for rollout in group.rollouts)
        return [name for name in self._together if name in expected and not self._done.has(name, members)]

    def expected(self, rollout: Rollout) -> tuple[str, ...]:
        """The scorers whose verdicts a rollout has once it is judged."""
        names = self._expected.get(rollout.env)
        if names is None:
            names = self._expected[rollout.env] = expected_scorers(self._generation.of, rollout.env)
        return names

    def _again(self, rollout: Rollout) -> tuple[str, ...]:
        """The scorers that judge a rollout again in place; none, if only another member of its group was chosen."""
        if not self._is_chosen(rollout):
            return ()
        if not self._mark.failed_only:
            return self.expected(rollout)
        gradings = self.earlier_gradings(rollout)
        graded = folded(rollout, gradings, self._generation)
        return missing_scorers(graded, self.expected(rollout), gradings)

    def earlier_gradings(self, rollout: Rollout) -> list[Grading]:
        """The gradings of this generation that earlier calls have made of a rollout."""
        return self._gradings.of(rollout.key)


def count_slots(reader: RunReader) -> int:
    """How many slots have been tried, as far as the beginnings of the lines show."""
    count = 0
    for segment in segments(reader.folder):
        with (reader.folder / segment).open("rb") as file:
            count += sum(line.find(FIRST_ATTEMPT, 0, BEGINNING_BYTES) > 0 for line in file)
    return count


def _condition(reader: RunReader, where: str | None, failed_only: bool) -> Callable[[Rollout], bool]:
    """Which rollouts are to be judged, by the scores that count now."""
    if where is None and not failed_only:
        return lambda rollout: True
    condition = parse_where(where) if where is not None else None
    gradings = reader.gradings()

    def selects(rollout: Rollout) -> bool:
        graded = reader.folded(rollout, gradings)
        if failed_only and not is_ungraded(graded):
            return False
        return condition is None or condition(msgspec.to_builtins(graded))

    return selects
