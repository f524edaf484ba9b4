"""Mapping: a data set's own fields to the ones that Windrow reads, as the row is loaded.

    prompt=question                 the field `prompt` is the row's `question`
    answer=answer|after:####        … passed through filters, left to right
    answer=solution.final|number    a source may lie deeper: by key, in a list by index

Every source is read from the row as it came, so the order of the mappings does not matter. What a mapping overwrites
with another value stays in the row, under `_original`. A missing source, or a filter that finds nothing, makes the
row invalid. The mapped row is the task: it is what is checked, hashed and recorded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from windrow.config import nearest
from windrow.errors import UsageError
from windrow.identity import canonical
from windrow.records import Json
from windrow.tasks.rows import BadRow, Row, Rows

ORIGINAL = "_original"
SHOWN_CHARS = 60
MAP_HELP = "a field from another, such as answer='answer|after:####'; repeats"

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?:/\d+(?:\.\d+)?)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")

# Takes the value so far; ValueError says why there is none.
Filter = Callable[[Json], Json]


class FieldMap(msgspec.Struct, frozen=True):
    """One mapped field: the path of its source, and its filters, each with its spelling."""

    field: str
    source: str
    filters: tuple[tuple[str, Filter], ...]

    def value(self, row: Mapping[str, Json]) -> Json:
        value = _value_at(row, self.source)
        for spelling, filter in self.filters:
            try:
                value = filter(value)
            except ValueError as problem:
                raise ValueError(f"{spelling!r} {problem}, in {_shown(value)}") from None
        return value


class MappedRows:
    """Rows with their mapping applied."""

    def __init__(self, rows: Rows, maps: tuple[FieldMap, ...]) -> None:
        self._rows = rows
        self._maps = maps

    @property
    def name(self) -> str:
        return self._rows.name

    def __iter__(self) -> Iterator[Row | BadRow]:
        for row in self._rows:
            if isinstance(row, BadRow):
                yield row
                continue
            try:
                yield Row(row.index, row.where, row.offset, apply_map(self._maps, row.data))
            except ValueError as problem:
                yield BadRow(row.where, str(problem))

    def read(self, offset: int) -> dict[str, Json]:
        return apply_map(self._maps, self._rows.read(offset))

    def close(self) -> None:
        self._rows.close()


def apply_map(maps: tuple[FieldMap, ...], row: dict[str, Json]) -> dict[str, Json]:
    """Return the mapped row; ValueError names the field and the filter that failed."""
    mapped: dict[str, Json] = {}
    for entry in maps:
        try:
            mapped[entry.field] = entry.value(row)
        except ValueError as problem:
            raise ValueError(f"cannot map {entry.field!r} from {entry.source!r}: {problem}") from None
    overwritten = {
        field: row[field]
        for field, value in mapped.items()
        if field in row and canonical(row[field]) != canonical(value)
    }
    if not overwritten:
        return {**row, **mapped}
    if ORIGINAL in row:
        raise ValueError(f"cannot map {next(iter(overwritten))!r}: the row has an {ORIGINAL!r} of its own")
    return {**row, **mapped, ORIGINAL: overwritten}


def parse_map(specs: Mapping[str, str], origins: Mapping[str, str]) -> tuple[FieldMap, ...]:
    """Read the mappings of `tasks.map`; `origins` tells where each key was set, for errors."""
    maps = []
    for field, spec in specs.items():
        key = f"tasks.map.{field}"
        try:
            maps.append(_field_map(field, spec))
        except ValueError as problem:
            where = origins.get(key) or origins.get("tasks.map") or "tasks.map"
            raise UsageError(f"{where}: {field}={spec}: {problem}") from None
    return tuple(maps)


def _field_map(field: str, spec: str) -> FieldMap:
    source, bar, rest = spec.partition("|")
    if not field or not source.strip():
        raise ValueError("expected FIELD=SOURCE or FIELD=SOURCE|filter, such as answer=answer|after:####")
    if field == ORIGINAL:
        raise ValueError(f"{ORIGINAL!r} is where overwritten values are kept; map to another field")
    filters = []
    while bar:
        if rest.lstrip().startswith("regex:"):
            spelling, bar, rest = rest, "", ""  # a pattern may hold bars: it takes the rest
        else:
            spelling, bar, rest = rest.partition("|")
        filters.append((spelling.lstrip(), _filter(spelling.lstrip())))
    return FieldMap(field, source.strip(), tuple(filters))


def _filter(spelling: str) -> Filter:
    name, colon, argument = spelling.partition(":")
    name = name.strip()
    if name in PLAIN:
        if colon:
            raise ValueError(f"the filter {name!r} takes no text after a colon")
        return PLAIN[name]
    if name in WITH_TEXT:
        if not argument:
            raise ValueError(f"the filter {name!r} needs a text: {name}:TEXT")
        return WITH_TEXT[name](argument)
    filter_names = [*WITH_TEXT, *PLAIN]
    raise ValueError(
        f"unknown filter {name!r}{nearest(name, filter_names)} (known: {', '.join(filter_names)})"
    )


def _value_at(row: Mapping[str, Json], source: str) -> Json:
    """Return the value at a dotted path; a field whose own name has dots takes precedence."""
    if source in row:
        return row[source]
    value: Any = row
    for key in source.split("."):
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, Mapping) and key in value:
            value = value[key]
        else:
            near = nearest(source, row)
            raise ValueError(f"the row has no {source!r}{near} (it has: {', '.join(row) or 'nothing'})")
    return value


def _after(text: str) -> Filter:
    def filter(value: Json) -> Json:
        _, separator, rest = _text(value).rpartition(text)
        return _nonempty(rest.strip() if separator else "")

    return filter


def _before(text: str) -> Filter:
    def filter(value: Json) -> Json:
        rest, separator, _ = _text(value).partition(text)
        return _nonempty(rest.strip() if separator else "")

    return filter


def _regex(pattern: str) -> Filter:
    try:
        compiled = re.compile(pattern)
    except re.error as problem:
        raise ValueError(f"the pattern {pattern!r} does not compile: {problem}") from None

    def filter(value: Json) -> Json:
        match = compiled.search(_text(value))
        return _nonempty((match[1] if compiled.groups else match[0]) if match else None)

    return filter


def _strip(value: Json) -> Json:
    return _text(value).strip()


def _lower(value: Json) -> Json:
    return _text(value).lower()


def _number(value: Json) -> Json:
    """Return the number as text, without thousands separators or a currency sign."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    text = _THOUSANDS.sub("", _text(value).strip().replace("−", "-").rstrip("."))
    text = re.sub(r"^([-+]?)\s*[$€£]\s*", r"\1", text)
    if not _NUMBER.fullmatch(text):
        raise ValueError("finds no number")
    return text


def _json(value: Json) -> Json:
    try:
        return msgspec.json.decode(_text(value))
    except (msgspec.DecodeError, RecursionError) as problem:
        raise ValueError(f"finds no JSON ({problem})") from None


PLAIN: dict[str, Filter] = {"strip": _strip, "lower": _lower, "number": _number, "json": _json}
WITH_TEXT: dict[str, Callable[[str], Filter]] = {"after": _after, "before": _before, "regex": _regex}


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise ValueError("needs text")
    return value


def _nonempty(text: str | None) -> str:
    if not text:
        raise ValueError("finds nothing")
    return text


def _shown(value: Json) -> str:
    text = canonical(value).decode()
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
