"""`datasets:`: the data sets of a split, joined to one list of tasks.

Each row keeps the name of its data set as its `source`, which is part of its identity. So a file gives the same ids
whether it is collected alone or with others, and a data set that joins a split later adds its tasks to the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from windrow.config import DatasetConfig, RunConfig, expand, nearest
from windrow.errors import UsageError
from windrow.records import Json
from windrow.tasks.row_formats import ForeignRows, format_of
from windrow.tasks.rows import BadRow, Row, Rows

OFFSET_BITS = 48  # of a place in one file; what is above says which file
_OFFSET = (1 << OFFSET_BITS) - 1

Open = Callable[[str, str | None], tuple[Rows, str]]


class JoinedRows:
    """The rows of several data sets, one after another."""

    def __init__(self, sets: Sequence[tuple[ForeignRows, str, str | None]]) -> None:
        """Take each data set with its name, and with the agent for rows that name none."""
        self._sets = sets

    @property
    def name(self) -> str:
        return ", ".join(rows.name for rows, _, _ in self._sets)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(source for _, source, _ in self._sets)

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that the configuration gives to rows which name none."""
        return tuple(agent for _, _, agent in self._sets if agent is not None)

    @property
    def repeats(self) -> tuple[int, int] | None:
        ranges = [rows.repeats for rows, _, _ in self._sets if rows.repeats is not None]
        return (min(least for least, _ in ranges), max(most for _, most in ranges)) if ranges else None

    @property
    def seeded(self) -> bool:
        return any(rows.seeded for rows, _, _ in self._sets)

    @property
    def merged_elsewhere(self) -> bool:
        return any(rows.merged_elsewhere for rows, _, _ in self._sets)

    @property
    def unheeded(self) -> set[str]:
        return {name for rows, _, _ in self._sets for name in rows.unheeded}

    def __iter__(self) -> Iterator[Row | BadRow]:
        before = 0
        for number, (rows, _, agent) in enumerate(self._sets):
            most = -1
            for row in rows:
                if isinstance(row, Row):
                    most = max(most, row.index)
                    offset = (number << OFFSET_BITS) | row.offset
                    yield Row(before + row.index, row.where, offset, _driven(row.data, agent))
                else:
                    yield row
            before += most + 1

    def read(self, offset: int) -> dict[str, Json]:
        rows, _, agent = self._sets[offset >> OFFSET_BITS]
        return _driven(rows.read(offset & _OFFSET), agent)

    def source_of(self, offset: int) -> str:
        """Return the name of the data set that holds the row at `offset`."""
        return self._sets[offset >> OFFSET_BITS][1]

    def close(self) -> None:
        for rows, _, _ in self._sets:
            rows.close()


def datasets_of_split(run: RunConfig, split: str | None) -> tuple[str, list[DatasetConfig]]:
    """Return the split and its data sets; raise UsageError if the split is ambiguous or has none."""
    for key, value in (("path", run.tasks.path), ("source", run.tasks.source)):
        if value is not None:
            raise UsageError(
                f"tasks.{key} {value!r} and `datasets` are both given; leave one out (each of `datasets` has its own {key})"
            )
    splits = list(dict.fromkeys(dataset.split for dataset in run.datasets))
    if split is None and len(splits) > 1:
        raise UsageError(f"`datasets` are of several splits: give --split, one of {', '.join(splits)}")
    wanted = splits[0] if split is None else split
    datasets = [dataset for dataset in run.datasets if dataset.split == wanted]
    if not datasets:
        raise UsageError(
            f"--split {wanted}: no data set is of it{nearest(wanted, splits)} (they are of {', '.join(splits)})"
        )
    return wanted, datasets


def repeats_of(datasets: Sequence[DatasetConfig]) -> int | None:
    """Return the number of rollouts per task that these data sets ask for, or None."""
    repeat_counts = {dataset.num_repeats for dataset in datasets}
    if len(repeat_counts) > 1:
        numbers = ", ".join(
            str(number or "none") for number in sorted(repeat_counts, key=lambda number: number or 0)
        )
        raise UsageError(
            f"the data sets of this split differ in num_repeats ({numbers}), and a run has one: give -k, or collect "
            f"them apart"
        )
    return repeat_counts.pop()


def open_datasets(datasets: Sequence[DatasetConfig], split: str, opened: Open) -> JoinedRows:
    sets: list[tuple[ForeignRows, str, str | None]] = []
    for dataset in datasets:
        rows, default_name = opened(expand(dataset.path, where="datasets.path"), split)
        name = expand(dataset.source, where="datasets.source") or default_name
        if name in (source for _, source, _ in sets):
            raise UsageError(
                f"two data sets of split {split!r} are called {name!r}; give one another `source`"
            )
        sets.append((ForeignRows(rows), name, expand(dataset.agent, where="datasets.agent")))
    return JoinedRows(sets)


def _driven(row: dict[str, Json], agent: str | None) -> dict[str, Json]:
    """Return the row with its agent: the row's own, or else the data set's."""
    if agent is None:
        return row
    row_format = format_of(row)
    return row_format.with_agent(row, agent) if row_format is not None else {"agent": agent, **row}
