"""Inputs for the fuzz tests: valid documents, broken in ways that a disk, an editor, a server or an enemy breaks them.

    @fuzz(300)
    @given(mutated_bytes([b'{"prompt": "hi"}']))

`WINDROW_FUZZ=100` tries a hundred times as many.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from windrow.errors import WindrowError

T = TypeVar("T")

TIMES = float(os.environ.get("WINDROW_FUZZ", "1"))


def fuzz(examples: int) -> Callable[..., Any]:
    """So many examples, times WINDROW_FUZZ. What takes long is pytest-timeout's business."""
    return settings(
        max_examples=max(1, int(examples * TIMES)), deadline=None, suppress_health_check=list(HealthCheck)
    )


def taken_or_refused(work: Callable[[], T]) -> T | None:
    """What the work gives, or None where an error of ours says why not. Whatever else is raised is a failure."""
    try:
        return work()
    except WindrowError as problem:
        refused = str(problem)
    assert refused.strip()
    return None


PIECES: tuple[bytes, ...] = (
    b"", b"\n", b"\r\n", b"\r", b"\0", b" ", b"\t", b",", b":", b";", b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b"{}",
    b"[]", b"null", b"NaN", b"-Infinity", b"1e999", b"-0", b"0.5", b"1" * 30, b"9" * 5000, b"true", b"\xff", b"\xc3",
    b"\xef\xbb\xbf", b"\xff\xfe", b"\\ud83d", b"\\u0000", "é\u2028😀".encode(), b"[" * 2000, b'{"a":' * 2000, b"!!",
    b"&a", b"*a", b"<<: *a", b"- ", b"? ", b"|\n", b"%", b"#", b"---\n", b"2024-13-45", b"!!python/object:os.system",
    b"!!timestamp x", b"!!int x", b"!!float x", b"!!binary x", b"0o9", b"0x", b"1_000", b"1:60:61", b"${", b"${X}", b"=", b"!=",
    b"<=", b"..", b".", b"id", b"data", b"__class__",
)  # fmt: skip

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**64, 2**70, 10**400, -(10**30), 0.5, -0.0, 1e308, 5e-324, "", "x",
    "null", "\ud83d", "\0", "é\u2028😀", "x" * 10_000, [], {}, [None], [[]], [{}], {"": None}, {"a": {"b": []}}, ["x", 1],
    "2024-13-45", "../../etc/passwd", "a\0b", "${HOME}", "{{ x }}", "{% for %}",
)  # fmt: skip

Edit = tuple[int, int, int]  # where, how much, what: each taken modulo what there is
edits = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 2**12), st.integers(0, 2**12)), max_size=5)


def _edited(data: bytes, changes: Sequence[Edit]) -> bytes:
    for where, size, what in changes:
        at = where % (len(data) + 1)
        end = at + size % 40
        kind = what % 5
        piece = PIECES[what // 5 % len(PIECES)]
        if kind == 0:
            data = data[:at] + piece + data[at:]
        elif kind == 1:
            data = data[:at] + piece + data[end:]
        elif kind == 2:
            data = data[:at] + data[end:]
        elif kind == 3:
            data = data[:at] + data[at:end] * 2 + data[end:]
        else:
            data = data[:at] + bytes([size % 256]) + data[at + 1 :]
    return data


def mutated_bytes(documents: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of these, cut, doubled, spliced and sprinkled; or bytes that have nothing to do with them."""
    return st.builds(_edited, st.sampled_from(list(documents)), edits) | st.binary(max_size=200)


def mutated_text(documents: Sequence[str]) -> st.SearchStrategy[str]:
    encoded = mutated_bytes([document.encode() for document in documents])
    return encoded.map(lambda data: data.decode(errors="surrogateescape")) | st.text(max_size=60)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if path else []
    for key, below in items:
        found += _places(below, (*path, key))
    return found


def _reshaped(document: Any, changes: Sequence[Edit]) -> Any:
    document = copy.deepcopy(document)
    for where, size, what in changes:
        places = _places(document)
        if not places:
            break
        *parents, last = places[where % len(places)]
        holder = document
        for key in parents:
            holder = holder[key]
        value = copy.deepcopy(VALUES[what % len(VALUES)])
        if size % 4 == 0:
            del holder[last]
        elif size % 4 == 1 and isinstance(holder, dict):
            holder[str(VALUES[size % len(VALUES)])[:50]] = value
        elif size % 4 == 2 and isinstance(holder, list):
            holder[last:last] = [copy.deepcopy(holder[last])] * (size % 7)
        else:
            holder[last] = value
    return document


def reshaped(documents: Sequence[Any]) -> st.SearchStrategy[Any]:
    """One of these JSON documents with values of other kinds in it, and keys taken out or put in."""
    return st.builds(_reshaped, st.sampled_from(list(documents)), edits)


def mutated_json(documents: Sequence[Any]) -> st.SearchStrategy[bytes]:
    """Such a document as JSON text: most of it valid, some of it not."""
    whole = reshaped(documents).map(lambda document: json.dumps(document).encode())
    texts = [json.dumps(document, ensure_ascii=False).encode() for document in documents]
    return whole | mutated_bytes(texts)
