"""The built-in scorers' verdicts, as pure functions: (reply, answer) → correct, well formed, and the answer it read.

"Well formed" says whether the reply held something that could be compared at all: it is recorded beside the
correctness and weighs nothing unless `format_weight` says so. The answer is kept as evidence: majorities are counted
by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from windrow.errors import ScorerError
from windrow.records import Json
from windrow.util.linear_patterns import LinearPattern, linear_pattern

_NUMBER = r"[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?"
_WHOLE_NUMBER = re.compile(_NUMBER)
_CURRENCY = re.compile(r"^([-+−]?)\s*[$€£]\s*")
_FRACTION = re.compile(rf"({_NUMBER})\s*/\s*({_NUMBER})")  # of a whole text: a search would be quadratic
# A sign counts only where nothing stands before it: 10-3 and covid-19 hold no negative number.
_IN_TEXT = re.compile(
    r"(?:(?<![\w)\]])[-+−])?[$€£]?"
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?:\s*/\s*\d+)?|\.\d+)"
)
_NUMBER_START = re.compile(r"[-+−$€£.\d]")
_NUMBER_START_ASCII = re.compile(r"[-+$.0-9]")
_MARKER = re.compile(r"\\boxed\s*\{|####|answer\s*(?:is|:|=)", re.I)
_MARKER_FOLDED = re.compile(_MARKER.pattern)
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_CHOICE_MARKED = re.compile(
    r"(?i:answer\s*(?:is|:|=))[\s*:]*\(?([A-Z](?![A-Za-z'’])|[a-z](?=[).:;,*\n]|\s*\Z))"
)
# "A" and "I" are words too: alone they count unless a sentence goes on after them as after an article or a pronoun.
_GOES_ON = r"(?!\s+(?!(?:is|was|and|or|but|because|since|as|seems|must)\b)[a-z])"
_CHOICE = re.compile(rf"(?<![A-Za-z])\(?([B-HJ-Z]|[AI]{_GOES_ON})\)?(?![A-Za-z'’])")

MAX_READ_CHARS = (
    200_000  # from the end, where a reply settles on its answer: verdicts are given on the event loop
)

SHORT_CHARS = 64
MAX_NUMBER_CHARS = 10_000  # an exact number takes time that grows with the square of its digits


class AnswerMatch(NamedTuple):
    """How a reply compares with the answer. `final_answer` is the answer that the reply settles on, in one notation
    however the reply wrote it; None if it settles on none. A scorer that only searches the reply does not have
    `looks_for_answer`."""

    correct: bool
    well_formed: bool
    final_answer: str | None = None
    looks_for_answer: bool = True


def answers_of(answer: Json) -> list[str]:
    """Return the acceptable answers of a row: one, or a list of them."""
    return [str(item) for item in answer] if isinstance(answer, list) else [str(answer)]


def exact(reply: str, answer: Json, settings: Mapping[str, Json]) -> AnswerMatch:
    """Accept a reply that equals the answer, apart from surrounding white space."""
    final_answer = reply.strip()
    correct = any(final_answer == wanted.strip() for wanted in answers_of(answer))
    return AnswerMatch(correct, bool(final_answer), final_answer or None)


def contains(reply: str, answer: Json, settings: Mapping[str, Json]) -> AnswerMatch:
    """Accept a reply that contains the answer, ignoring case."""
    text = reply.casefold()
    correct = any(wanted.strip().casefold() in text for wanted in answers_of(answer))
    return AnswerMatch(correct, bool(text.strip()), looks_for_answer=False)


def regex(reply: str, answer: Json, settings: Mapping[str, Json]) -> AnswerMatch:
    """Read the answer as the last match of the setting `pattern` (of its group 1, if it has one). Without that
    setting, the row's answer is itself a pattern that must match somewhere in the reply.
    """
    pattern = settings.get("pattern")
    if pattern is None:
        correct = any(_row_pattern(wanted).search(reply) for wanted in answers_of(answer))
        return AnswerMatch(correct, bool(reply.strip()), looks_for_answer=False)
    matches = list(re.finditer(pattern, reply))
    if not matches:
        return AnswerMatch(False, False)
    match = matches[-1]
    final_answer = ((match.group(1) if match.re.groups else match.group()) or "").strip()
    return AnswerMatch(final_answer in (wanted.strip() for wanted in answers_of(answer)), True, final_answer)


def _row_pattern(pattern: str) -> LinearPattern:
    try:
        return linear_pattern(pattern)
    except ValueError as problem:
        raise ScorerError(f"the row's 'answer': {problem}", retryable=False) from None


def check_pattern_answers(answer: Json) -> None:
    """Refuse an answer that is no pattern, or one that could hold up a run; ValueError says why."""
    for wanted in answers_of(answer):
        try:
            linear_pattern(wanted)
        except ValueError as problem:
            raise ValueError(f"'answer' is a pattern for the scorer 'regex': {problem}") from None


def choice(reply: str, answer: Json, settings: Mapping[str, Json]) -> AnswerMatch:
    """Read the letter that the reply settles on: after "answer is", or else the last one that stands alone."""
    reply = reply[-MAX_READ_CHARS:]
    marked = _CHOICE_MARKED.findall(reply) or _CHOICE.findall(reply)
    if not marked and re.fullmatch(r"\s*\(?([A-Za-z])\)?[.):]?\s*", reply):
        marked = re.findall(r"[A-Za-z]", reply)
    if not marked:
        return AnswerMatch(False, False)
    final_answer = marked[-1].upper()
    correct = final_answer in (wanted.strip().strip("().").upper() for wanted in answers_of(answer))
    return AnswerMatch(correct, True, final_answer)


def number(reply: str, answer: Json, settings: Mapping[str, Json]) -> AnswerMatch:
    """Read the number that the reply settles on: boxed, after "####" or "answer is", or else the last one in it."""
    final_answer = final_number(reply)
    if final_answer is None:
        return AnswerMatch(False, False)
    wanted = [value for text in answers_of(answer) if (value := parse_number(text)) is not None]
    tolerance = settings.get("tolerance", 0)
    if not tolerance:
        return AnswerMatch(final_answer in wanted, True, _written(final_answer))
    correct = any(abs(final_answer - value) <= Fraction(str(tolerance)) for value in wanted)
    return AnswerMatch(correct, True, _written(final_answer))


def _written(number: Fraction) -> str:
    try:
        return str(number)
    except ValueError:  # more digits than Python writes in decimal
        return f"{number.numerator:#x}/{number.denominator:#x}"


def parse_number(text: str) -> Fraction | None:
    """Return the number that makes up the whole of `text`, exactly: 1,234.5, -3/4, 12 %, $5, 1e3."""
    return _parsed_short(text) if len(text) <= SHORT_CHARS else _parsed(text)


def _parsed(text: str) -> Fraction | None:
    text = _CURRENCY.sub(r"\1", text.strip())
    text = text.rstrip("$€£").rstrip("%.").strip().replace("−", "-")
    if len(text) > MAX_NUMBER_CHARS:
        return None
    quotient = _FRACTION.fullmatch(text)
    if quotient:
        top, bottom = parse_number(quotient[1]), parse_number(quotient[2])
        return top / bottom if top is not None and bottom else None
    if not text or not _WHOLE_NUMBER.fullmatch(text) or not any(c.isdigit() for c in text):
        return None
    try:
        value = Decimal(text.replace(",", ""))
        return Fraction(value) if abs(value.adjusted()) < 400 else None
    except (InvalidOperation, ValueError):
        return None


_parsed_short = lru_cache(maxsize=4096)(
    _parsed
)  # a group is compared with one answer, and often says the same


def final_number(reply: str) -> Fraction | None:
    reply = reply[-MAX_READ_CHARS:]
    if "\\" in reply:
        reply = _plain(reply)
    end = len(reply)
    for mark in reversed(_marks(reply)):
        text, end = reply[mark.end() : end], mark.start()
        inside = _braced(text) if mark.group().endswith("{") else text.lstrip(" \t\r\n*:=").partition("\n")[0]
        whole = parse_number(inside)
        if whole is not None:
            return whole
        first = _IN_TEXT.search(inside)
        if first and (value := parse_number(first.group())) is not None:
            return value
    for number_text in reversed(_numbers(reply)):
        value = parse_number(number_text)
        if value is not None:
            return value
    return None


def _marks(text: str) -> list[re.Match[str]]:
    """Return the matches of phrases that announce an answer."""
    folded = text.casefold()  # most replies hold no mark, and this is how to see that quickly
    if "answer" not in folded and "####" not in folded and "boxed" not in folded:
        return []
    if text.isascii():  # folding moves nothing, and a pattern without a choice of case is three times as fast
        return list(_MARKER_FOLDED.finditer(folded))
    return list(_MARKER.finditer(text))


def _numbers(text: str) -> list[str]:
    """Return every number in the text. Searching for possible starts first is far quicker in prose."""
    number_texts: list[str] = []
    starts = _NUMBER_START_ASCII if text.isascii() else _NUMBER_START
    start = starts.search(text)
    while start is not None:
        number = _IN_TEXT.match(text, start.start())
        if number is not None:
            number_texts.append(number.group())
        start = starts.search(text, number.end() if number is not None else start.end())
    return number_texts


def _plain(text: str) -> str:
    """Replace LaTeX numbers by plain ones: fractions, thousands, percent signs."""
    for mark, plain in (("{,}", ","), ("\\,", ""), ("\\!", ""), ("\\%", "%"), ("\\$", "$")):
        text = text.replace(mark, plain)
    return _without_latex_fractions(text)


def _without_latex_fractions(text: str) -> str:
    """Write 3\\frac{1}{2} as 3 1/2. The digit before it is looked for backwards: a pattern that began with it and the
    space after it would try every space of the text.
    """
    plain, end = "", 0
    for fraction in _LATEX_FRACTION.finditer(text):
        before = text[end : fraction.start()].rstrip()
        whole = before[-1:].isdecimal()
        plain += f"{before}{' ' if whole else ''}{fraction[1]}/{fraction[2]}"
        end = fraction.end()
    return plain + text[end:]


def _braced(text: str) -> str:
    """Return the text before the brace that closes the one just opened."""
    depth = 1
    for brace in re.finditer(r"[{}]", text):
        depth += 1 if brace.group() == "{" else -1
        if not depth:
            return text[: brace.start()]
    return text.partition("\n")[0]
