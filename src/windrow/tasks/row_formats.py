"""Row formats of other systems: a format reads the task of a row, its opening messages, its sampling, its name, and
the environment that plays it.

An integration declares a format under a field that its rows have; the format is imported when such a row comes up.
Rows of other systems may be numbered. The number of a task becomes its index, and rows with the same task number are
one task, with one sample per row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from windrow.errors import UsageError
from windrow.identity import digest
from windrow.records import Json, Rollout
from windrow.registry import integrations, load
from windrow.tasks.rows import BadRow, Row, RowFile, Rows
from windrow.util.hash_index import HashIndex

WEB = "web"


class Marks(msgspec.Struct, frozen=True):
    """The numbers of a row: the number of its task, and the number among the task's rollouts."""

    task: int | None = None
    rollout: int | None = None
    seeded: bool = False  # whether the number of the rollout was its seed as well


class Traits(msgspec.Struct, frozen=True):
    """The properties that a draw uses: rows with the same `unique` ask the same; `site` is the host of a task."""

    unique: str
    difficulty: float | None = None
    site: str | None = None


Fields = Mapping[str, Json]
Measure = Callable[[Iterable[Rollout]], Mapping[str, float]]  # of the final attempts


def _as_it_is(row: Fields) -> tuple[dict[str, Json], Marks]:
    return dict(row), Marks()


def _with_agent_field(row: Fields, agent: str) -> dict[str, Json]:
    return {"agent": agent, **row}


def _id_field(row: Fields) -> str | None:
    return str(row["id"]) if row.get("id") is not None else None


class RowFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A reader for the rows of one system. The defaults read a row of ours.

    Its functions raise ValueError with the problem of a row; `is_row` never raises.
    """

    is_row: Callable[[Fields], bool]  # a row with the declared field may still be another system's
    opening_of: Callable[[Fields], list[dict[str, Any]]]  # the messages that an episode opens with
    has_input: Callable[[Fields], bool] = lambda row: False  # whether the row has such messages itself
    split_row: Callable[[Fields], tuple[dict[str, Json], Marks]] = _as_it_is  # the task, and its numbers
    with_agent: Callable[[Fields, str], dict[str, Json]] = _with_agent_field  # unless the row names one
    sampling_of: Callable[[Fields], dict[str, Json]] = lambda row: {}
    unheeded: Callable[[Fields], list[str]] = lambda row: []  # requests that a policy of ours is not told of
    merges_repeats: bool = False  # whether that system takes rows that are alike for samples of one task
    env_of: Callable[[Fields], str | None] = lambda row: None  # None: any that is opened with messages
    owns_env: Callable[[Fields], bool] = lambda row: False  # whether its field `env` means something else
    limits_of: Callable[[Fields, str | None], dict[str, int]] = lambda row, split: {}  # given the split
    key_of: Callable[[Fields], str | None] = _id_field
    traits_of: Callable[[Fields], Traits | None] = lambda row: None  # None: by the names of its fields
    measures: Mapping[str, Measure] = {}  # by name: the system's own metrics of a run of its rows


def format_of(row: Fields) -> RowFormat | None:
    """Return the format of a row of another system, or None."""
    for field, target in _declared_formats():
        if field in row:
            row_format = _loaded(target)
            if row_format.is_row(row):
                return row_format
    return None


@functools.cache
def _declared_formats() -> tuple[tuple[str, str], ...]:
    """Return fields and formats in the order of the integrations: two systems may use a field of the same name."""
    return tuple(pair for integration in integrations() for pair in integration.row_formats.items())


@functools.cache
def _loaded(target: str) -> RowFormat:
    row_format = load("row format", target)
    if not isinstance(row_format, RowFormat):
        raise UsageError(f"row format {target!r} is not a windrow.tasks.row_formats.RowFormat")
    return row_format


def sampling_of(row: Mapping[str, Json]) -> dict[str, Json]:
    """Return the sampling that a row asks for, in its own `sampling` or in the format of another system."""
    sampling: dict[str, Json] = row.get("sampling") or {}
    row_format = format_of(row)
    return {**row_format.sampling_of(row), **sampling} if row_format is not None else sampling


def limits_of(row: Mapping[str, Json], split: str | None) -> dict[str, int]:
    """Return the limits that a row of another system asks for, by their names in `limits`."""
    row_format = format_of(row)
    return row_format.limits_of(row, split) if row_format is not None else {}


def traits_of(row: Mapping[str, Json]) -> Traits:
    """Return the traits of a row, read by the format of another system or by the names of its fields."""
    row_format = format_of(row)
    traits = row_format.traits_of(row) if row_format is not None else None
    if traits is not None:
        return traits
    value = row.get("difficulty")
    difficulty = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return Traits(digest(row), difficulty, host_of(row.get("start_url") or row.get("url")))


def host_of(address: Json) -> str | None:
    """Return the host of an address, in lower case and without a leading www; None if it has none."""
    if not isinstance(address, str):
        return None
    try:
        host = urlsplit(address if "://" in address else f"//{address}").hostname
    except ValueError:
        return None
    return host.removeprefix("www.") if host else None


def env_of(rows: Rows | ForeignRows, *, as_they_are: bool = True) -> str | None:
    """Return the environment for rows that name none: the environment of the first row's system, or `web` for a row
    of ours that is on the web, if rows are taken as they are.
    """
    row = next((row.data for row in rows if isinstance(row, Row)), {})
    return usual_env(row) or (WEB if as_they_are and is_on_the_web(row) else None)


def usual_env(row: Mapping[str, Json]) -> str | None:
    """Return the environment that plays rows of this row's system, unless the row names one."""
    row_format = format_of(row) if own_env(row) is None else None
    return row_format.env_of(row) if row_format is not None else None


def is_on_the_web(row: Mapping[str, Json]) -> bool:
    """Return whether a row has an instruction and an address, and nothing else that an episode could open with."""
    address = "start_url" in row or "url" in row
    return address and "instruction" in row and not {"env", "prompt", "messages"} & row.keys()


def own_env(row: Mapping[str, Json]) -> str | None:
    """Return the environment of ours that a row names, or None: in rows of some systems the field has another
    meaning.
    """
    row_format = format_of(row)
    if row_format is not None and row_format.owns_env(row):
        return None
    env: str | None = row.get("env")
    return env


def key_of(row: Mapping[str, Json]) -> str | None:
    """Return the name of a row in its own source: no two rows with different contents share one."""
    row_format = format_of(row)
    return row_format.key_of(row) if row_format is not None else _id_field(row)


class ForeignRows:
    """Rows without the numbers that another system gave them. After a whole pass, `repeats` is the lowest and the
    highest number of rows per numbered task.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.repeats: tuple[int, int] | None = None
        self.seeded = False  # whether rows had the number of their rollout as a seed
        self.merged_elsewhere = False  # whether the rows' system takes rows that are alike for one task
        self.unheeded: set[str] = set()  # what rows ask for that a policy of ours is not told

    @property
    def name(self) -> str:
        return self._rows.name

    def __iter__(self) -> Iterator[Row | BadRow]:
        numbers = _Numbers()
        for row in self._rows:
            row_format = format_of(row.data) if isinstance(row, Row) else None
            if isinstance(row, BadRow) or row_format is None:
                yield row
                continue
            try:
                content, marks = row_format.split_row(row.data)
                new = numbers.take(content, marks)
            except (ValueError, RecursionError) as problem:
                yield BadRow(row.where, str(problem))
                continue
            self.seeded = self.seeded or marks.seeded
            self.merged_elsewhere = self.merged_elsewhere or row_format.merges_repeats
            self.unheeded.update(row_format.unheeded(content))
            if new:
                yield Row(row.index if marks.task is None else marks.task, row.where, row.offset, content)
        self.repeats = numbers.repeats()

    def read(self, offset: int) -> dict[str, Json]:
        row = self._rows.read(offset)
        row_format = format_of(row)
        return row_format.split_row(row)[0] if row_format is not None else row

    def content_digest(self) -> str | None:
        """Return a digest of the underlying rows, or None if it cannot be known without reading them."""
        return self._rows.content_digest() if isinstance(self._rows, RowFile) else None

    def close(self) -> None:
        self._rows.close()


class _Numbers:
    """The numbered tasks, each with its content and its number of rows so far."""

    def __init__(self) -> None:
        self._contents = HashIndex()
        self._rows: dict[int, int] = {}
        self._taken = HashIndex("I")
        self._unnumbered = False

    def take(self, content: dict[str, Json], marks: Marks) -> bool:
        """Return whether the row is a task that has not come up yet; raise ValueError if it contradicts an earlier
        one.
        """
        if marks.task is None:
            if marks.rollout is not None:
                raise ValueError("the row numbers its rollout, but not its task")
            self._unnumbered = True
        if self._unnumbered and (marks.task is not None or self._rows):
            raise ValueError("some rows number their tasks and some do not; number all of them, or none")
        if marks.task is None:
            return True
        identity = int(digest(content)[:15], 16)
        earlier = self._contents.get(marks.task)
        if earlier is not None and earlier != identity:
            raise ValueError(f"task {marks.task} has another content here than in an earlier row")
        if marks.rollout is not None:
            rollout = (marks.task, marks.rollout)
            if self._taken.get(rollout) is not None:
                raise ValueError(f"rollout {marks.rollout} of task {marks.task} is in an earlier row, too")
            self._taken.set(rollout, 1)
        self._contents.set(marks.task, identity)
        self._rows[marks.task] = self._rows.get(marks.task, 0) + 1
        return earlier is None

    def repeats(self) -> tuple[int, int] | None:
        return (min(self._rows.values()), max(self._rows.values())) if self._rows else None
