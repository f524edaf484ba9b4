"""`--where` and `--redo`: `status=failed,error.owner=infra,reward<0.5`; a comma means and.

A field is a dotted path into a rollout. `=` and `!=` compare a number as a number and anything else as text; `<`,
`<=`, `>`, `>=` compare numbers. A field that is absent or null matches only `=null`, and `!=` anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from windrow.config import nearest
from windrow.errors import UsageError
from windrow.records import ErrorRecord, Json, PolicyRecord, Rollout, Task, Timing, Usage

_TERM = re.compile(r"([A-Za-z_][\w.:\-/]*)\s*(!=|<=|>=|=|<|>)\s*(.*)")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_PARTS: dict[str, type[msgspec.Struct]] = {
    "task": Task,
    "policy": PolicyRecord,
    "error": ErrorRecord,
    "usage": Usage,
    "timing": Timing,
}
_FREE = ("scores", "metrics", "state")  # what stands below these is named by environments and scorers

Where = Callable[[Mapping[str, Json]], bool]


def parse_where(text: str) -> Where:
    """A test of a rollout's JSON object."""
    terms = [_term(part) for part in text.split(",") if part.strip()]
    if not terms:
        raise UsageError("empty condition; write for example status=failed,reward<0.5")
    return lambda rollout: all(term(rollout) for term in terms)


def _term(part: str) -> Where:
    match = _TERM.fullmatch(part.strip())
    if match is None:
        raise UsageError(f"condition {part.strip()!r}: expected FIELD=VALUE (or !=, <, <=, >, >=)")
    path, operator, wanted = match.groups()
    problem = _unknown_field(path)
    if problem is not None:
        raise UsageError(f"condition {part.strip()!r}: {problem}")
    if operator in ("=", "!="):
        return lambda rollout: _equal(_lookup(rollout, path.split(".")), wanted) == (operator == "=")
    try:
        bound = float(wanted)
    except ValueError:
        raise UsageError(f"condition {part.strip()!r}: {operator} needs a number") from None

    def compare(rollout: Mapping[str, Json]) -> bool:
        value = _lookup(rollout, path.split("."))
        return _is_number(value) and _COMPARE[operator](value, bound)

    return compare


def _unknown_field(path: str) -> str | None:
    """What is wrong with a field that no rollout has."""
    first, _, rest = path.partition(".")
    fields = Rollout.__struct_fields__
    if first not in fields:
        return f"a rollout has no field {path!r}{nearest(first, fields)}"
    if not rest or first in _FREE:
        return None
    second = rest.partition(".")[0]
    fields = _PARTS[first].__struct_fields__ if first in _PARTS else ()
    return None if second in fields else f"a rollout has no field {path!r}{nearest(second, fields)}"


def _lookup(value: Json, path: list[str]) -> Json:
    """What stands at `path`. A name may hold dots itself (`number.format`): the longest that fits is taken."""
    if not path:
        return value
    if isinstance(value, Mapping):
        for end in range(len(path), 0, -1):
            name = ".".join(path[:end])
            if name in value:
                return _lookup(value[name], path[end:])
    return None


def _equal(value: Json, wanted: str) -> bool:
    if value is None:
        return wanted == "null"
    if isinstance(value, bool):
        return wanted == str(value).lower()
    if _is_number(value):
        try:
            return bool(value == float(wanted))
        except ValueError:
            return False
    return str(value) == wanted


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
