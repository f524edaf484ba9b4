"""Hints for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no name is near."""
    import difflib  # only a name that was misspelt needs it

    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
