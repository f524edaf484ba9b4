"""Rubrics as rows write them: criteria, each with a weight, a scale, and how a judge is to answer.

    rubric: ["It is polite.",                                        # yes or no, weight 1
             {criterion: "It is clear.", scale: [1, 5], weight: 2},  # from 1 to 5
             {criterion: "It names three causes.", points: 3}]       # from 0 to 3

An integration may read a rubric from another field of the row.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec

from windrow.records import Json
from windrow.registry import declared, load
from windrow.util.linear_patterns import linear_pattern

YES_NO: Literal["yes/no"] = "yes/no"
JSON = "json"
TAGGED = r"(?i)<score>(.*?)</score>"
CUT_OFF = "cut_off"  # what the score for a reply that was cut off is called: no criterion is

Scale = tuple[float, float] | Literal["yes/no"] | None


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """One criterion for a reply. Without a `scale`, the judge's number is used as it is."""

    name: str
    text: str
    weight: float = 1.0
    scale: Scale = YES_NO
    extract: str | None = None
    format: str | None = None


class Rubric(msgspec.Struct, frozen=True, kw_only=True):
    """The criteria of a row, and the deduction for a reply that was cut off.

    `configured`: they come from the configuration, so their patterns may use all of `re`.
    """

    criteria: tuple[Criterion, ...]
    configured: bool = False
    format_coef: float = 0.0


class _CriterionFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    criterion: str
    name: str | None = None
    weight: float = 1.0
    scale: tuple[float, float] | Literal["yes/no"] | None = None
    points: float | None = None
    extract: str | None = None
    format: str | None = None


def rubric_of(row: Mapping[str, Json]) -> Rubric | None:
    """Return the rubric of a row, or None; ValueError describes the problem with it."""
    readers = declared("rubrics")
    fields = [field for field in ("rubric", *readers) if row.get(field) is not None]
    if len(fields) > 1:
        raise ValueError(f"both {fields[0]!r} and {fields[1]!r} are in the row; give one of them")
    if not fields:
        return None
    [field] = fields
    if field == "rubric":
        return Rubric(criteria=read_criteria(row[field], field))
    rubric: Rubric = load("rubric", readers[field])(row[field])
    return rubric


def read_criteria(written: Json, where: str, *, configured: bool = False) -> tuple[Criterion, ...]:
    """Read criteria in the form that rows and settings write them. `configured`: they are those of settings."""
    if not isinstance(written, list) or not written:
        raise ValueError(f"{where!r} must be a list of at least one criterion")
    read = tuple(
        _criterion(item, number, f"{where}[{number - 1}]", configured)
        for number, item in enumerate(written, 1)
    )
    counts = Counter(criterion.name for criterion in read)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"{where!r} has two criteria called {twice!r}")
    if not 0 < sum(criterion.weight for criterion in read) < math.inf:
        raise ValueError(f"{where!r}: at least one criterion must have a weight over 0, and their sum an end")
    return read


def check_pattern(extract: str, where: str, *, configured: bool = False) -> None:
    """Refuse a reading of replies that is neither `json` nor a regular expression with a group. One of a row must be
    one that is matched in linear time.
    """
    if extract == JSON:
        return
    try:
        groups = re.compile(extract).groups if configured else linear_pattern(extract, re.S).groups
    except (re.error, OverflowError, RecursionError) as problem:
        raise ValueError(f"{where}: the pattern does not compile: {problem}") from None
    except ValueError as problem:
        raise ValueError(f"{where}: {problem}") from None
    if not groups:
        raise ValueError(f"{where}: the pattern {extract!r} has no group; its first group is what is read")


def _criterion(item: Json, number: int, where: str, configured: bool) -> Criterion:
    try:
        written = msgspec.convert({"criterion": item} if isinstance(item, str) else item, _CriterionFields)
    except msgspec.ValidationError as problem:
        raise ValueError(f"{where}: {problem}") from None
    if not written.criterion.strip():
        raise ValueError(f"{where}: 'criterion' is empty")
    if not math.isfinite(written.weight) or written.weight < 0:
        raise ValueError(f"{where}: 'weight' must be 0 or more, found {written.weight:g}")
    if written.extract is not None:
        check_pattern(written.extract, f"{where}: 'extract'", configured=configured)
        if written.extract != JSON and written.format is None:
            raise ValueError(f"{where}: 'extract' needs 'format', which tells the judge how to answer")
    name = str(number) if written.name is None else written.name
    if not name or name == CUT_OFF:
        raise ValueError(f"{where}: a criterion cannot be called {name!r}")
    return Criterion(
        name=name,
        text=written.criterion,
        weight=written.weight,
        scale=_scale(written, where),
        extract=written.extract,
        format=written.format,
    )


def _scale(written: _CriterionFields, where: str) -> Scale:
    if written.points is not None:
        if written.scale is not None:
            raise ValueError(f"{where}: give 'points' or 'scale', not both")
        return check_scale((0.0, written.points), f"{where}: 'points'")
    return YES_NO if written.scale is None else check_scale(written.scale, f"{where}: 'scale'")


def check_scale(scale: Scale, where: str) -> Scale:
    if isinstance(scale, tuple) and not 0 < scale[1] - scale[0] < math.inf:
        raise ValueError(f"{where} must rise from its lowest number to its highest, found {list(scale)}")
    return scale
