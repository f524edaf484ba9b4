"""What is wrong with rows: as many as there may be, told in a few lines."""

from __future__ import annotations

from collections.abc import Iterable

from windrow.tasks.rows import BadRow

SHOWN_PROBLEMS = 20


class RowProblems:
    """The problems that many rows may have: the first of them, and how many there are."""

    def __init__(self, first: Iterable[BadRow] = (), count: int = 0) -> None:
        self.first = list(first)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def append(self, problem: BadRow) -> None:
        self._count += 1
        if len(self.first) < SHOWN_PROBLEMS:
            self.first.append(problem)


def list_problems(problems: list[BadRow] | RowProblems) -> str:
    """Bad rows, one a line, the first of many."""
    first = problems.first if isinstance(problems, RowProblems) else problems[:SHOWN_PROBLEMS]
    lines = [f"{bad.where}: {bad.problem}" for bad in first]
    if len(problems) > SHOWN_PROBLEMS:
        lines.append(f"… and {len(problems) - SHOWN_PROBLEMS:,} more")
    count = "1 invalid row" if len(problems) == 1 else f"{len(problems):,} invalid rows"
    return f"{count}:\n" + "\n".join(lines)
