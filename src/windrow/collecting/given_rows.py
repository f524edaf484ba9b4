"""The rows of `run_examples`, found again by the task and the sample of a rollout, so that each comes back itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windrow.records import Json, Task
from windrow.tasks.row_formats import Marks, format_of


class GivenRows:
    """Rows by their task. Rows that another system numbered alike are one task: its samples are its rows, in the order
    of their own numbers. A sample beyond them is of the last one.
    """

    def __init__(self, rows: Sequence[Mapping[str, Json]]) -> None:
        numbered: dict[tuple[bool, int], list[tuple[int, int]]] = {}
        for place, row in enumerate(rows):
            marks = _marks(row)
            task = (False, place) if marks.task is None else (True, marks.task)
            numbered.setdefault(task, []).append((place if marks.rollout is None else marks.rollout, place))
        self._rows = rows
        self._places = {task: [place for _, place in sorted(own)] for task, own in numbered.items()}
        self._any_numbered = any(is_numbered for is_numbered, _ in numbered)

    def of(self, task: Task) -> list[Mapping[str, Json]]:
        """Return the rows of a task, one for each sample."""
        is_numbered = self._any_numbered and format_of(task.data or {}) is not None
        return [self._rows[place] for place in self._places[is_numbered, task.index]]


def _marks(row: Mapping[str, Json]) -> Marks:
    row_format = format_of(row)
    try:
        return row_format.split_row(row)[1] if row_format is not None else Marks()
    except (ValueError, RecursionError):  # the survey refuses it, with its place
        return Marks()
