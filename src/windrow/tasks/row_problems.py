"""Problems of rows: a few lines report any number of them."""

from __future__ import annotations

from collections.abc import Iterable

from windrow.tasks.rows import BadRow

SHOWN_PROBLEMS = 20


class RowProblems:
    """The problems of many rows: the first ones, and the count of all."""

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
    """List bad rows, one per line; of many only the first."""
    first = problems.first if isinstance(problems, RowProblems) else problems[:SHOWN_PROBLEMS]
    lines = [f"{bad.where}: {bad.problem}" for bad in first]
    if len(problems) > SHOWN_PROBLEMS:
        lines.append(f"… and {len(problems) - SHOWN_PROBLEMS:,} more")
    count = "1 invalid row" if len(problems) == 1 else f"{len(problems):,} invalid rows"
    return f"{count}:\n" + "\n".join(lines)
