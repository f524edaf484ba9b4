"""Checks the report of our script on a page: a hostile page may have changed every function that the script calls."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

MORE_CHARS = 100  # by which the last line may exceed the limit
MAX_COUNT = 2**53  # of anything in a page
MEDDLED = "the page does not let itself be read"
_TEXTS = {"title": 500, "url": 4_000, "beginning": 2_000}
_COUNTS = ("above", "below", "nodes", "found", "text", "captcha")
_BOX = 5  # an element's number, and its x, y, width and height


class Unreadable(Exception):
    """The report is not what our script would send: the page has meddled with it."""


class Option(msgspec.Struct, frozen=True):
    """An option of a list."""

    label: str
    value: str


def max_reply(max_chars: int, max_elements: int) -> int:
    """The maximum length of the script's JSON text, in characters, on a page that leaves the script alone.

    JSON escapes a character as up to six; a line has a dozen more for its number and separators; an element's box has five
    numbers; the other texts have 40,000 characters.
    """
    return 12 * max_chars + 128 * max_elements + 64_000


def read(reply: Any, max_chars: int, max_elements: int) -> dict[str, Any]:
    """The report, with checked types and bounds; Unreadable if it is anything else.

    A report that is longer than the script's maximum is not parsed.
    """
    if not isinstance(reply, str) or len(reply) > max_reply(max_chars, max_elements):
        raise Unreadable(MEDDLED)
    try:
        seen = json.loads(reply)
        left, lines = max_chars + MORE_CHARS, []
        for text, number in zip(seen["texts"], seen["numbers"], strict=True):
            line = one_line(text[:left])
            left -= len(line)
            lines.append([line, _count(number)])
            if left <= 0:
                break
        texts = {name: one_line(str(seen[name])[:most]) for name, most in _TEXTS.items()}
        counts = {name: _count(seen[name] or 0) for name in _COUNTS}
        boxes = seen["boxes"]
        return {
            **counts,
            **texts,
            "lines": lines,
            "cut": bool(seen["cut"]),
            "fonts": bool(seen["fonts"]),
            "status": None if seen["status"] is None else _count(seen["status"]),
            "scroll": [_count(seen["scroll"][number]) for number in range(3)],
            "boxes": [
                (_count(boxes[at]), [float(side) for side in boxes[at + 1 : at + _BOX]])
                for at in range(0, len(boxes) - _BOX + 1, _BOX)
            ],
        }
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError):
        raise Unreadable(MEDDLED) from None


def pair(value: Any) -> tuple[float, float]:
    """Two finite numbers, such as a point on the screen; Unreadable if a page sent something else."""
    try:
        first, second = (float(number) for number in value)
    except (TypeError, ValueError, OverflowError):
        raise Unreadable(MEDDLED) from None
    if not (math.isfinite(first) and math.isfinite(second)):
        raise Unreadable(MEDDLED)
    return first, second


def read_options(value: Any) -> list[Option]:
    """The options of a list; Unreadable if a page sent something else."""
    try:
        return msgspec.convert(value, list[Option])
    except msgspec.ValidationError:
        raise Unreadable(MEDDLED) from None


def _count(value: Any) -> int:
    """A whole number that a record can hold."""
    return max(-MAX_COUNT, min(int(value), MAX_COUNT))


def one_line(text: str) -> str:
    """The text in one line, so that it cannot pose as several, and without lone surrogates, which no record can hold."""
    return whole(" ".join(text.split()))


def whole(text: str) -> str:
    """The text with each lone surrogate replaced: a page may cut a character in half."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
