"""The gradings of a run by attempt, in little memory: only positions are held, and a grading is read when needed.

A grading of a group counts only while its members are the members of the group. It is stale once a member was run again
or a sample was added.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import msgspec

from windrow.records import AttemptId, Grading, Lamport
from windrow.store.line_positions import LinePosition, LinePositions
from windrow.util.hash_index import HashIndex


class GradingHead(msgspec.Struct, gc=False):
    """The part of a grading's line that names what was graded; verdicts and evidence are not decoded."""

    unit: str
    members: tuple[AttemptId, ...]
    fingerprint: str
    generation: int
    lamport: Lamport = 0  # lines of older versions have none

    @property
    def is_of_group(self) -> bool:
        return is_of_group(self)


def is_of_group(grading: Grading | GradingHead) -> bool:
    members = grading.members
    if len(members) == 1:
        return members[0][0] != grading.unit
    return all(id != grading.unit for id, _ in members)


decode_grading_head = msgspec.json.Decoder(GradingHead).decode


class Memberships:
    """The members of each group as one hash over all of them: sixteen bytes per group of any size."""

    def __init__(self) -> None:
        self._numbers = HashIndex("I")
        self._sums = array("Q")

    def add(self, group: str, member: AttemptId) -> None:
        number = self._numbers.get(group)
        if number is None:
            number = len(self._sums)
            self._numbers.set(group, number)
            self._sums.append(0)
        self._sums[number] ^= _hashed(member)

    def are(self, group: str, members: tuple[AttemptId, ...]) -> bool:
        """Whether these are all the members, and no others."""
        number = self._numbers.get(group)
        total = 0
        for member in members:
            total ^= _hashed(member)
        return number is not None and self._sums[number] == total


def _hashed(member: AttemptId) -> int:
    return hash(member) & 0xFFFFFFFFFFFFFFFF


class Gradings:
    """The gradings of each attempt, in the order they were made."""

    def __init__(self, read: Callable[[LinePosition], Grading | None]) -> None:
        self._read = read
        self._positions = LinePositions()
        self._latest = HashIndex("I")  # by attempt: the index of its last position
        # By index: 1 + the index of the position before it that belongs to the same attempt, or 0.
        self._before = array("Q")
        self._groups: Memberships | None = None
        self._fresh: dict[AttemptId, list[Grading]] = {}

    def __bool__(self) -> bool:
        return bool(self._before or self._fresh)

    def __contains__(self, attempt: AttemptId) -> bool:
        """Whether the attempt has gradings, including those that do not count."""
        return attempt in self._fresh or (bool(self._before) and self._latest.get(attempt) is not None)

    def add(self, attempt: AttemptId, position: LinePosition) -> None:
        latest = self._latest.exchange(attempt, len(self._positions))
        self._before.append(0 if latest is None else latest + 1)
        self._positions.append(position)

    def extend(self, attempt: AttemptId, gradings: Sequence[Grading]) -> None:
        """Add gradings that were just made; their evidence stays on disk."""
        without_evidence = (msgspec.structs.replace(grading, judgements=()) for grading in gradings)
        self._fresh.setdefault(attempt, []).extend(without_evidence)

    def check_groups(self, groups: Memberships) -> None:
        """From now on, leave out gradings of groups whose members differ from `groups`."""
        self._groups = groups

    def of(self, attempt: AttemptId) -> list[Grading]:
        """Read the gradings of an attempt, oldest first: by Lamport number, those of older versions before them."""
        located: list[tuple[str, Grading]] = []
        latest = self._latest.get(attempt) if self._before else None
        number = 0 if latest is None else latest + 1
        while number:
            position = self._positions[number - 1]
            grading = self._read(position)
            if grading is not None and attempt in grading.members and self._counts(grading):
                located.append((position.segment, grading))
            number = self._before[number - 1]
        located.reverse()
        gradings = _in_order(located) if len(located) > 1 else [grading for _, grading in located]
        return [*gradings, *self._fresh[attempt]] if attempt in self._fresh else gradings

    def _counts(self, grading: Grading) -> bool:
        return (
            self._groups is None
            or not is_of_group(grading)
            or self._groups.are(grading.unit, grading.members)
        )


def _in_order(located: Sequence[tuple[str, Grading]]) -> list[Grading]:
    """Gradings with their segments, oldest first; given by segment, each in the order of its lines.

    Lines without a number come first: those of one segment as they stand, those of several by time. The others follow by
    their number; writers that gave the same number did not know of each other, and their names decide.
    """
    by_time = len({segment for segment, grading in located if not grading.lamport}) > 1

    def age(each: tuple[str, Grading]) -> tuple[int, float]:
        grading = each[1]
        return grading.lamport or 0, grading.graded_at if by_time and not grading.lamport else 0.0

    return [grading for _, grading in sorted(located, key=age)]
