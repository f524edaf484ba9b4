"""Hints for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

MAX_NAME_CHARS = 100
MAX_NAMES = 1000  # names may come from rows and replies, and comparing takes time


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no name is near."""
    import difflib  # only a name that was misspelt needs it

    if len(name) > MAX_NAME_CHARS:
        return ""
    close = difflib.get_close_matches(name, islice(names, MAX_NAMES), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
