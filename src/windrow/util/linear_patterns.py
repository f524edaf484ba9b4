"""Regular expressions of people we do not know: matched in linear time, in bounded memory, or refused.

`re` backtracks, so that a pattern such as `(a+)+$` never ends. RE2 does not, and it has no lookaround, backreferences,
atomic groups or possessive quantifiers. A pattern is read with the syntax of `re` and means what it means there: `\\d`,
`\\w` and `\\s` know all of Unicode, and `$` also matches before a last newline. One thing differs: `\\b` knows the letters
of ASCII alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Protocol

MAX_PATTERN_CHARS = 10_000
MAX_PROGRAM_BYTES = 2 << 20  # of memory, for a pattern and its states
_SPACES = r"\t-\r\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_NO_SPACES = (
    r"\x{0}-\x{8}\x{e}-\x{1b}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}"
    r"\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff}"
)
_NO_WORDS = (  # whatever is neither letter nor number, but for the underscore
    r"\p{M}\p{S}\p{Z}\p{C}\p{Pd}\p{Ps}\p{Pe}\p{Pi}\p{Pf}\p{Po}"
    r"\x{203f}\x{2040}\x{2054}\x{fe33}\x{fe34}\x{fe4d}-\x{fe4f}\x{ff3f}"
)
_CATEGORIES = {
    op.CATEGORY_DIGIT: (r"\p{Nd}", r"\d"),
    op.CATEGORY_NOT_DIGIT: (r"\P{Nd}", r"\D"),
    op.CATEGORY_WORD: (r"\p{L}\p{N}_", r"\w"),
    op.CATEGORY_NOT_WORD: (_NO_WORDS, r"\W"),
    op.CATEGORY_SPACE: (_SPACES, r"\t-\r\x{20}"),
    op.CATEGORY_NOT_SPACE: (_NO_SPACES, r"\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{10ffff}"),
}  # with Unicode, and with the flag (?a)
_MISSING = {
    op.ASSERT: "looks ahead or behind, (?=…) or (?<=…)",
    op.ASSERT_NOT: "looks ahead or behind, (?!…) or (?<!…)",
    op.GROUPREF: "refers back to a group",
    op.GROUPREF_EXISTS: "depends on whether a group has matched, (?(1)…)",
    op.ATOMIC_GROUP: "has an atomic group, (?>…)",
    op.POSSESSIVE_REPEAT: "has a possessive quantifier, such as a++",
}


class LinearMatch(Protocol):
    """The part of `re.Match` that a match has."""

    def group(self, number: int = 0, /) -> str | None: ...
    def span(self, number: int = 0, /) -> tuple[int, int]: ...


class LinearPattern:
    """A compiled pattern. `groups` counts its groups."""

    def __init__(self, pattern: str, flags: int) -> None:
        import re2  # only rows that have patterns need it

        options = re2.Options()
        options.max_mem = MAX_PROGRAM_BYTES
        options.log_errors = False
        tree = _parser.parse(pattern, flags)
        self.groups: int = tree.state.groups - 1
        try:
            self._compiled: Any = re2.compile(_alternatives(tree, tree.state.flags), options)
        except re2.error as problem:
            raise ValueError(f"it is too large ({_said(problem)})") from None

    def search(self, text: str) -> LinearMatch | None:
        found: LinearMatch | None = self._compiled.search(_encodable(text))
        return found

    def finditer(self, text: str) -> Iterator[LinearMatch]:
        matches: Iterator[LinearMatch] = self._compiled.finditer(_encodable(text))
        return matches


@lru_cache(maxsize=64)
def linear_pattern(pattern: str, flags: int = 0) -> LinearPattern:
    """Compile a pattern; ValueError says why it cannot be used."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"the pattern is longer than {MAX_PATTERN_CHARS:,} characters")
    try:
        return LinearPattern(pattern, flags)
    except (re.error, OverflowError, RecursionError, UnicodeError) as problem:
        raise ValueError(f"the pattern does not compile: {problem}") from None
    except ValueError as problem:
        raise ValueError(
            f"the pattern {pattern[:80]!r} cannot be used: {problem}. A pattern in a row is matched by RE2, so that no row "
            f"can hold up a run; write it without that, or give it in the configuration instead of the row"
        ) from None


def _alternatives(tree: Any, flags: int) -> str:
    return "".join(_node(kind, value, flags) for kind, value in tree)


def _node(kind: Any, value: Any, flags: int) -> str:
    if kind in _MISSING:
        raise ValueError(f"it {_MISSING[kind]}")
    if kind in (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY):
        written = _character(kind, value, flags)
        return f"(?i:{written})" if flags & re.IGNORECASE else written
    if kind is op.BRANCH:
        return f"(?:{'|'.join(_alternatives(branch, flags) for branch in value[1])})"
    if kind is op.SUBPATTERN:
        group, added, removed, inside = value
        written = _alternatives(inside, (flags | added) & ~removed)
        return f"(?:{written})" if group is None else f"({written})"
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        least, most, inside = value
        count = f"{{{least},{'' if most is op.MAXREPEAT else most}}}"
        return f"(?:{_alternatives(inside, flags)}){count}{'?' if kind is op.MIN_REPEAT else ''}"
    if kind is op.AT:
        return _position(value, flags)
    raise ValueError(f"it has {kind}")  # of a Python that we do not know


def _character(kind: Any, value: Any, flags: int) -> str:
    if kind is op.ANY:
        return "(?s:.)" if flags & re.DOTALL else r"[^\n]"
    if kind is op.LITERAL:
        return _literal(value)
    if kind is op.NOT_LITERAL:
        return f"[^{_literal(value)}]"
    negated = value[0][0] is op.NEGATE
    members = "".join(_member(kind, member, flags) for kind, member in value[negated:])
    return f"[{'^' * negated}{members}]"


def _member(kind: Any, value: Any, flags: int) -> str:
    if kind is op.CATEGORY:
        return _CATEGORIES[value][1 if flags & re.ASCII else 0]
    return _literal(value) if kind is op.LITERAL else f"{_literal(value[0])}-{_literal(value[1])}"


def _literal(code: int) -> str:
    return rf"\x{{{code:x}}}"


def _position(value: Any, flags: int) -> str:
    if value is op.AT_BEGINNING:
        return "(?m:^)" if flags & re.MULTILINE else r"\A"
    if value is op.AT_END:
        return "(?m:$)" if flags & re.MULTILINE else r"(?:\n??\z)"
    places = {
        op.AT_BEGINNING_STRING: r"\A",
        op.AT_END_STRING: r"\z",
        op.AT_BOUNDARY: r"\b",
        op.AT_NON_BOUNDARY: r"\B",
    }
    return places[value]


def _said(problem: Exception) -> str:
    said = problem.args[0] if problem.args else problem
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)


def _encodable(text: str) -> str:
    """The text without lone surrogates, which UTF-8 cannot write: a question mark takes the place of each."""
    return text if text.isascii() else text.encode(errors="replace").decode()
