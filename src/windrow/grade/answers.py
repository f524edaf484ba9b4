"""The built-in scorers' verdicts, as pure functions: (reply, answer) → (correct, well formed).

"Well formed" says whether the reply held something that could be compared at all: it is recorded beside the
correctness and weighs nothing unless `format_weight` says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from windrow.records import Json

_NUMBER = r"[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?"
_FRACTION = re.compile(rf"({_NUMBER})\s*/\s*({_NUMBER})")
_IN_TEXT = re.compile(
    r"[-+−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?:\s*/\s*\d+)?|[-+−]?\.\d+"
)
_MARKED = re.compile(r"\\boxed\{([^{}]*)\}|####\s*(\S[^\n]*)|answer\s*(?:is|:|=)\s*\**\s*(\S[^\n]*)", re.I)
_CHOICE_MARKED = re.compile(r"answer\s*(?:is|:|=)\s*\**\s*\(?([A-Za-z])\b", re.I)
_CHOICE = re.compile(r"(?<![A-Za-z])\(?([A-Z])\)?(?![A-Za-z'’])")

Judged = tuple[bool, bool]


def answers_of(answer: Json) -> list[str]:
    """The acceptable answers of a row: one, or a list of them."""
    return [str(item) for item in answer] if isinstance(answer, list) else [str(answer)]


def exact(reply: str, answer: Json, settings: Mapping[str, Json]) -> Judged:
    """The reply is the answer, white space around it aside."""
    said = reply.strip()
    return any(said == wanted.strip() for wanted in answers_of(answer)), bool(said)


def contains(reply: str, answer: Json, settings: Mapping[str, Json]) -> Judged:
    """The answer stands somewhere in the reply, in either case."""
    said = reply.casefold()
    return any(wanted.strip().casefold() in said for wanted in answers_of(answer)), bool(said.strip())


def regex(reply: str, answer: Json, settings: Mapping[str, Json]) -> Judged:
    """With the setting `pattern`, its last match (group 1, if it has one) is the answer; without it, the row's
    answer is itself a pattern that must be found in the reply."""
    pattern = settings.get("pattern")
    if pattern is None:
        return any(re.search(wanted, reply) for wanted in answers_of(answer)), bool(reply.strip())
    found = list(re.finditer(pattern, reply))
    if not found:
        return False, False
    match = found[-1]
    said = (match.group(1) if match.re.groups else match.group()) or ""
    return said.strip() in (wanted.strip() for wanted in answers_of(answer)), True


def choice(reply: str, answer: Json, settings: Mapping[str, Json]) -> Judged:
    """The letter that the reply settles on: after "answer is", else the last one that stands alone."""
    marked = _CHOICE_MARKED.findall(reply) or _CHOICE.findall(reply)
    if not marked and re.fullmatch(r"\s*\(?([A-Za-z])\)?[.):]?\s*", reply):
        marked = re.findall(r"[A-Za-z]", reply)
    if not marked:
        return False, False
    said = marked[-1].upper()
    return said in (wanted.strip().strip("().").upper() for wanted in answers_of(answer)), True


def number(reply: str, answer: Json, settings: Mapping[str, Json]) -> Judged:
    """The number that the reply settles on: boxed, after "####" or "answer is", else the last one in it."""
    said = final_number(reply)
    if said is None:
        return False, False
    wanted = [value for text in answers_of(answer) if (value := parse_number(text)) is not None]
    tolerance = Fraction(str(settings.get("tolerance", 0)))
    return any(abs(said - value) <= tolerance for value in wanted), True


def parse_number(text: str) -> Fraction | None:
    """The number that the whole of `text` is, exactly: 1,234.5, -3/4, 12 %, $5, 1e3."""
    text = text.strip().strip("$€£").rstrip("%.").strip().replace("−", "-")
    quotient = _FRACTION.fullmatch(text)
    if quotient:
        top, bottom = parse_number(quotient[1]), parse_number(quotient[2])
        return top / bottom if top is not None and bottom else None
    if not text or not re.fullmatch(_NUMBER, text) or not any(c.isdigit() for c in text):
        return None
    try:
        value = Decimal(text.replace(",", ""))
        return Fraction(value) if abs(value.adjusted()) < 400 else None
    except (InvalidOperation, ValueError):
        return None


def final_number(reply: str) -> Fraction | None:
    for marked in reversed(list(_MARKED.finditer(reply))):
        inside = next(group for group in marked.groups() if group is not None)
        whole = parse_number(inside)
        if whole is not None:
            return whole
        first = _IN_TEXT.search(inside)
        if first and (value := parse_number(first.group())) is not None:
            return value
    for found in reversed(_IN_TEXT.findall(reply)):
        value = parse_number(found)
        if value is not None:
            return value
    return None
