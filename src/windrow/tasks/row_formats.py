"""Rows of other systems, taken as they are: what of a row is its task, what it opens with, what it asks of the sampling,
what it is called, and which environment of ours plays it.

A system is known by a field that only its rows have; what knows its form is imported when such a row comes up. A row
may be numbered there. The number of its task is its index here, and the rows of one task are that task once: as many as
there are, so many samples they stand for.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import msgspec

from windrow.identity import digest
from windrow.records import Json
from windrow.registry import ROW_FORMS
from windrow.tasks.rows import BadRow, Row, RowFile, Rows
from windrow.util.hash_index import HashIndex

WEB = "web"


class Marks(msgspec.Struct, frozen=True):
    """How a row is numbered: its task, and which of the task's rollouts it is."""

    task: int | None = None
    rollout: int | None = None
    seeded: bool = False  # whether the number of the rollout was its seed, too


class Traits(msgspec.Struct, frozen=True):
    """What a draw goes by: rows of one `unique` ask the same; `site` is the host that a task is on."""

    unique: str
    difficulty: float | None = None
    site: str | None = None


class RowForm(Protocol):
    """What knows the rows of one system."""

    def is_row(self, row: Mapping[str, Json]) -> bool: ...
    def split_row(self, row: Mapping[str, Json]) -> tuple[dict[str, Json], Marks]: ...
    def with_agent(self, row: Mapping[str, Json], agent: str) -> dict[str, Json]: ...
    def has_input(self, row: Mapping[str, Json]) -> bool: ...
    def opening_of(self, row: Mapping[str, Json]) -> list[dict[str, Any]]: ...
    def sampling_of(self, row: Mapping[str, Json]) -> dict[str, Json]: ...
    def unheeded(self, row: Mapping[str, Json]) -> list[str]: ...
    def env_of(self, row: Mapping[str, Json]) -> str | None: ...
    def limits_of(self, row: Mapping[str, Json], split: str | None) -> dict[str, int]: ...
    def owns_env(self, row: Mapping[str, Json]) -> bool: ...
    def key_of(self, row: Mapping[str, Json]) -> str | None: ...
    def traits_of(self, row: Mapping[str, Json]) -> Traits | None: ...


def form_of(row: Mapping[str, Json]) -> RowForm | None:
    """What knows this row, if it is of another system."""
    for field, module in ROW_FORMS.items():
        if field in row:
            form = _form(module)
            if form.is_row(row):
                return form
    return None


@functools.cache
def _form(module: str) -> RowForm:
    return cast(RowForm, importlib.import_module(module))


def sampling_of(row: Mapping[str, Json]) -> dict[str, Json]:
    """What a row asks of the sampling, in its own `sampling` or in the form of another system."""
    own: dict[str, Json] = row.get("sampling") or {}
    form = form_of(row)
    return {**form.sampling_of(row), **own} if form is not None else own


def limits_of(row: Mapping[str, Json], split: str | None) -> dict[str, int]:
    """The limits that a row of another system has there, by the names that they have in `limits`."""
    form = form_of(row)
    return form.limits_of(row, split) if form is not None else {}


def traits_of(row: Mapping[str, Json]) -> Traits:
    """What a row says of these, in the form of another system or by the names of its fields."""
    form = form_of(row)
    found = form.traits_of(row) if form is not None else None
    if found is not None:
        return found
    value = row.get("difficulty")
    difficulty = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return Traits(digest(row), difficulty, host_of(row.get("start_url") or row.get("url")))


def host_of(address: Json) -> str | None:
    """The host of an address, in small letters and without a leading www; None: it has none."""
    if not isinstance(address, str):
        return None
    try:
        host = urlsplit(address if "://" in address else f"//{address}").hostname
    except ValueError:
        return None
    return host.removeprefix("www.") if host else None


def env_of(rows: Rows | ForeignRows, *, as_they_are: bool = True) -> str | None:
    """The environment that rows are played in where nothing names one: that of the system of the first of them; `web` for a row
    of ours that is on the web, if rows are taken as they are."""
    row = next((row.data for row in rows if isinstance(row, Row)), {})
    return usual_env(row) or (WEB if as_they_are and is_on_the_web(row) else None)


def usual_env(row: Mapping[str, Json]) -> str | None:
    """The environment that plays rows of the system that a row is of, unless the row names one."""
    form = form_of(row) if own_env(row) is None else None
    return form.env_of(row) if form is not None else None


def is_on_the_web(row: Mapping[str, Json]) -> bool:
    """Whether a row says what is to be done at which address, and nothing else that an episode could open with."""
    address = "start_url" in row or "url" in row
    return address and "instruction" in row and not {"env", "prompt", "messages"} & row.keys()


def own_env(row: Mapping[str, Json]) -> str | None:
    """The environment of ours that a row names, if it does: in rows of some systems the field is another thing."""
    form = form_of(row)
    if form is not None and form.owns_env(row):
        return None
    env: str | None = row.get("env")
    return env


def key_of(row: Mapping[str, Json]) -> str | None:
    """What a row is called where it comes from: no two rows of other content are called the same."""
    form = form_of(row)
    if form is not None:
        return form.key_of(row)
    return str(row["id"]) if row.get("id") is not None else None


class ForeignRows:
    """Rows without the numbers that another system gave them. After a whole pass, `repeats` says how many rows each
    numbered task has at the least and at the most."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.repeats: tuple[int, int] | None = None
        self.seeded = False  # whether rows had the number of their rollout as a seed
        self.unheeded: set[str] = set()  # what rows ask for that a policy of ours is not told

    @property
    def name(self) -> str:
        return self._rows.name

    def __iter__(self) -> Iterator[Row | BadRow]:
        numbers = _Numbers()
        for row in self._rows:
            form = form_of(row.data) if isinstance(row, Row) else None
            if isinstance(row, BadRow) or form is None:
                yield row
                continue
            try:
                content, marks = form.split_row(row.data)
                new = numbers.take(content, marks)
            except (ValueError, RecursionError) as problem:
                yield BadRow(row.where, str(problem))
                continue
            self.seeded = self.seeded or marks.seeded
            self.unheeded.update(form.unheeded(content))
            if new:
                yield Row(row.index if marks.task is None else marks.task, row.where, row.offset, content)
        self.repeats = numbers.repeats()

    def read(self, offset: int) -> dict[str, Json]:
        row = self._rows.read(offset)
        form = form_of(row)
        return form.split_row(row)[0] if form is not None else row

    def content_digest(self) -> str | None:
        """What the rows are read from; None where that cannot be told without reading them."""
        return self._rows.content_digest() if isinstance(self._rows, RowFile) else None

    def close(self) -> None:
        self._rows.close()


class _Numbers:
    """The tasks that were numbered, each with its content and how many rows it has so far."""

    def __init__(self) -> None:
        self._contents = HashIndex()
        self._rows: dict[int, int] = {}
        self._taken = HashIndex("I")
        self._unnumbered = False

    def take(self, content: dict[str, Json], marks: Marks) -> bool:
        """Whether the row is a task that has not come up yet. ValueError: it contradicts an earlier one."""
        if marks.task is None:
            if marks.rollout is not None:
                raise ValueError("the row numbers its rollout, but not its task")
            self._unnumbered = True
        if self._unnumbered and (marks.task is not None or self._rows):
            raise ValueError("some rows number their tasks and some do not; number all of them, or none")
        if marks.task is None:
            return True
        identity = int(digest(content)[:15], 16)
        if (known := self._contents.get(marks.task)) is not None and known != identity:
            raise ValueError(f"task {marks.task} has another content here than in an earlier row")
        if marks.rollout is not None:
            rollout = (marks.task, marks.rollout)
            if self._taken.get(rollout) is not None:
                raise ValueError(f"rollout {marks.rollout} of task {marks.task} is in an earlier row, too")
            self._taken.set(rollout, 1)
        self._contents.set(marks.task, identity)
        self._rows[marks.task] = self._rows.get(marks.task, 0) + 1
        return known is None

    def repeats(self) -> tuple[int, int] | None:
        return (min(self._rows.values()), max(self._rows.values())) if self._rows else None
