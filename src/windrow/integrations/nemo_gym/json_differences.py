"""The difference between two JSON values, small if they are alike: `applied(a, difference(a, b)) == b`.

A difference is None (nothing), {"is": value}, {"in": {key: difference}, "set": {key: value}, "del": [keys]} for
objects, or {"list": [{"of": place in a, "in": difference} or {"is": value}, …]} for arrays of objects.
"""

from __future__ import annotations

from typing import Any

import msgspec

from windrow.records import Json

_encode = msgspec.json.Encoder().encode

Difference = dict[str, Any] | None


def difference(a: Json, b: Json) -> Difference:
    """Return the difference that turns `a` into `b`."""
    if _alike(a, b):
        return None
    if isinstance(a, dict) and isinstance(b, dict):
        return _objects(a, b)
    if isinstance(a, list) and isinstance(b, list) and _of_objects(a) and _of_objects(b):
        return _arrays(a, b)
    return {"is": b}


def applied(a: Json, patch: Difference) -> Json:
    """Return `a` with the difference applied."""
    if patch is None:
        return a
    if "is" in patch:
        return patch["is"]
    if "list" in patch:
        return [
            entry["is"] if "is" in entry else applied(_at(a, entry["of"]), entry.get("in"))
            for entry in patch["list"]
        ]
    patched = dict(a) if isinstance(a, dict) else {}
    for key in patch.get("del", ()):
        patched.pop(key, None)
    for key, inner in patch.get("in", {}).items():
        patched[key] = applied(patched.get(key), inner)
    return {**patched, **patch.get("set", {})}


def _objects(a: dict[str, Json], b: dict[str, Json]) -> Difference:
    inner = {
        key: inner_difference
        for key in b
        if key in a and (inner_difference := difference(a[key], b[key])) is not None
    }
    new = {key: value for key, value in b.items() if key not in a}
    gone = [key for key in a if key not in b]
    parts = {"in": inner, "set": new, "del": gone}
    return {name: part for name, part in parts.items() if part} or None  # None: only the keys' order differs


def _arrays(a: list[Json], b: list[Json]) -> Difference:
    """Match each object of `b` with the next one of `a` of its kind."""
    entries: list[dict[str, Json]] = []
    at = 0
    for value in b:
        index = next((n for n in range(at, len(a)) if _kind(a[n]) == _kind(value)), None)
        if index is None:
            entries.append({"is": value})
            continue
        at = index + 1
        inner = difference(a[index], value)
        entries.append({"of": index} if inner is None else {"of": index, "in": inner})
    same = entries == [{"of": n} for n in range(len(a))]
    return None if same else {"list": entries}


def _of_objects(values: list[Json]) -> bool:
    return all(isinstance(value, dict) for value in values)


def _kind(value: Json) -> tuple[Json, Json]:
    return repr(value.get("type")), repr(value.get("role"))


def _at(a: Json, index: int) -> Json:
    return a[index] if isinstance(a, list) and index < len(a) else None


def _alike(a: Json, b: Json) -> bool:
    """Return whether two values are spelled the same. 1, 1.0 and true are equal in Python, as are 0.0 and -0.0, but
    not in JSON.
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, str):
        return bool(a == b)
    try:
        return _encode(a) == _encode(b)
    except (UnicodeEncodeError, RecursionError):  # half a surrogate pair, say
        return False
