"""`--where` and `--redo`: `status=failed,error.owner=infra,reward<0.5`; a comma means and.

A field is a dotted path into a rollout. `=` and `!=` compare as text, `<`, `<=`, `>`, `>=` as numbers; a field that
is absent or null matches only `=null`, and `!=` anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from windrow.config import nearest
from windrow.errors import UsageError
from windrow.records import Json, Rollout

_TERM = re.compile(r"\s*([A-Za-z_][\w.\-/]*)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}

Where = Callable[[Mapping[str, Json]], bool]


def parse_where(text: str) -> Where:
    """A test of a rollout's JSON object."""
    terms = [_term(part) for part in text.split(",") if part.strip()]
    if not terms:
        raise UsageError("empty condition; write for example status=failed,reward<0.5")
    return lambda rollout: all(term(rollout) for term in terms)


def _term(part: str) -> Where:
    match = _TERM.fullmatch(part)
    if match is None:
        raise UsageError(f"condition {part.strip()!r}: expected FIELD=VALUE (or !=, <, <=, >, >=)")
    path, operator, wanted = match.groups()
    known = Rollout.__struct_fields__
    if path.partition(".")[0] not in known:
        raise UsageError(f"condition {part.strip()!r}: a rollout has no field {path!r}{nearest(path, known)}")
    if operator in ("=", "!="):
        return lambda rollout: (_text(_lookup(rollout, path)) == _canonical(wanted)) == (operator == "=")
    try:
        bound = float(wanted)
    except ValueError:
        raise UsageError(f"condition {part.strip()!r}: {operator} needs a number") from None

    def compare(rollout: Mapping[str, Json]) -> bool:
        value = _lookup(rollout, path)
        return isinstance(value, int | float) and _COMPARE[operator](value, bound)

    return compare


def _lookup(rollout: Mapping[str, Json], path: str) -> Json:
    value: Json = rollout
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _text(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return _canonical(str(value))


def _canonical(text: str) -> str:
    """1, 1.0 and 1e0 are one number; other text stands for itself."""
    try:
        return repr(float(text))
    except ValueError:
        return text
