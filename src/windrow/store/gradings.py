"""The gradings of a run by attempt, in little memory: where each stands is kept, and it is read when asked for."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from windrow.compact import Index
from windrow.records import AttemptId, Grading
from windrow.store.places import Place, Places


class Gradings:
    """The gradings of each attempt, in the order they were made."""

    def __init__(self, read: Callable[[Place], Grading]) -> None:
        self._read = read
        self._places = Places()
        self._latest = Index("I")  # by attempt: which of the places came last
        self._before = array(
            "Q"
        )  # by place: the number, from 1, of the one before it that is of the same attempt
        self._fresh: dict[AttemptId, list[Grading]] = {}

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._fresh or (bool(self._before) and self._latest.get(attempt) is not None)

    def add(self, attempt: AttemptId, place: Place) -> None:
        latest = self._latest.get(attempt)
        self._before.append(0 if latest is None else latest + 1)
        self._latest.set(attempt, len(self._places))
        self._places.append(place)

    def extend(self, attempt: AttemptId, gradings: Sequence[Grading]) -> None:
        """Gradings that were made just now."""
        self._fresh.setdefault(attempt, []).extend(gradings)

    def of(self, attempt: AttemptId) -> list[Grading]:
        """Reads them."""
        found: list[Grading] = []
        latest = self._latest.get(attempt) if self._before else None
        number = 0 if latest is None else latest + 1
        while number:
            grading = self._read(self._places[number - 1])
            if attempt in grading.members:
                found.append(grading)
            number = self._before[number - 1]
        return [*reversed(found), *self._fresh.get(attempt, ())]
