"""The gradings of a run by attempt, in little memory: where each stands is kept, and it is read when asked for.

A grading of a group counts only while its members are the group's: one that was run again, or a sample that was added,
makes it stale.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import msgspec

from windrow.records import AttemptId, Grading
from windrow.store.line_places import Place, Places
from windrow.util.hash_index import HashIndex


class GradingHead(msgspec.Struct, gc=False):
    """The part of a grading's line that says what it is of; the verdicts and the evidence are not decoded."""

    unit: str
    members: tuple[AttemptId, ...]
    fingerprint: str
    generation: int

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
    """Who belongs to each group, as a sum over the members: sixteen bytes a group, whatever its size."""

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

    def __init__(self, read: Callable[[Place], Grading | None]) -> None:
        self._read = read
        self._places = Places()
        self._latest = HashIndex("I")  # by attempt: which of the places came last
        self._before = array(
            "Q"
        )  # by place: the number, from 1, of the one before it that is of the same attempt
        self._groups: Memberships | None = None
        self._fresh: dict[AttemptId, list[Grading]] = {}

    def __bool__(self) -> bool:
        return bool(self._before or self._fresh)

    def __contains__(self, attempt: AttemptId) -> bool:
        """Whether there are any of it, also such as do not count."""
        return attempt in self._fresh or (bool(self._before) and self._latest.get(attempt) is not None)

    def add(self, attempt: AttemptId, place: Place) -> None:
        latest = self._latest.exchange(attempt, len(self._places))
        self._before.append(0 if latest is None else latest + 1)
        self._places.append(place)

    def extend(self, attempt: AttemptId, gradings: Sequence[Grading]) -> None:
        """Gradings that were made just now; their evidence stays on disk."""
        kept = (msgspec.structs.replace(grading, judgements=()) for grading in gradings)
        self._fresh.setdefault(attempt, []).extend(kept)

    def check_groups(self, groups: Memberships) -> None:
        """From now on, gradings of groups that have other members are left out."""
        self._groups = groups

    def of(self, attempt: AttemptId) -> list[Grading]:
        """Reads them. Those of several writers are in no order but that of their times."""
        found: list[tuple[str, Grading]] = []
        latest = self._latest.get(attempt) if self._before else None
        number = 0 if latest is None else latest + 1
        while number:
            place = self._places[number - 1]
            grading = self._read(place)
            if grading is not None and attempt in grading.members and self._counts(grading):
                found.append((place.segment, grading))
            number = self._before[number - 1]
        if len(found) > 1:
            found.reverse()
            if len({segment for segment, _ in found}) > 1:
                found.sort(key=lambda each: each[1].graded_at)
        gradings = [grading for _, grading in found]
        return [*gradings, *self._fresh[attempt]] if attempt in self._fresh else gradings

    def _counts(self, grading: Grading) -> bool:
        return (
            self._groups is None
            or not is_of_group(grading)
            or self._groups.are(grading.unit, grading.members)
        )
