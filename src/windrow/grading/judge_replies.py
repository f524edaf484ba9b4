"""Strict readers of judges' replies: a verdict has the requested form, or it does not count.

Readers never guess. Each raises ValueError with the problem in words for the judge, which is asked again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from windrow.grading.judge_view import without_thinking
from windrow.records import Json
from windrow.tasks.rubrics import JSON, Scale
from windrow.util.linear_patterns import LinearMatch, LinearPattern, linear_pattern

T = TypeVar("T")
Pattern = re.Pattern[str] | LinearPattern

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)", re.A)
_BEFORE = re.compile(r"[\d.,/+−-]\Z")  # a number that begins here began earlier: 1[0], -[4], 3/[5]
_AFTER = re.compile(r"[\d/%]|[.,]\d")
_FENCE = re.compile(r"```(?:json)?(?>\s*\n)(.*?)\n?```", re.S)  # (?>…): the space is read once
MAX_REPLY_CHARS = 200_000
MAX_MATCHES = 256


class Mark(NamedTuple):
    """A judge's verdict on a criterion, and its value: from 0 to 1, unless the criterion has no scale."""

    verdict: Json
    value: float


def marked(reply: str, pattern: Pattern, scale: Scale) -> Mark:
    """Return the verdict in the first group of `pattern`; several matches must agree."""
    return one_of(reply, pattern, lambda text: mark_of(text, scale))


def row_pattern(pattern: str) -> Pattern:
    """A pattern of a row, or one of our own: a reply is searched in linear time, whatever it is."""
    return linear_pattern(pattern, re.S)


def configured_pattern(pattern: str) -> Pattern:
    """A pattern of the configuration, which may use all of `re`."""
    return re.compile(pattern, re.S)


def one_of(reply: str, pattern: Pattern, read: Callable[[str], T]) -> T:
    """Apply `read` to the pattern's group in every match, and return the result; raise ValueError if results differ."""
    reply = without_thinking(reply)
    if len(reply) > MAX_REPLY_CHARS:
        raise ValueError(f"it is longer than {MAX_REPLY_CHARS:,} characters")
    verdicts: list[T] = []
    matches: Iterable[re.Match[str] | LinearMatch] = pattern.finditer(reply)
    for number, match in enumerate(matches):
        if number == MAX_MATCHES:
            raise ValueError(f"it gives more than {MAX_MATCHES} verdicts")
        text = match.group(1)
        if text is None:
            continue
        start, end = match.span(1)
        if _NUMBER.fullmatch(text) and (
            _BEFORE.search(reply, max(0, start - 1), start) or _AFTER.match(reply, end)
        ):
            raise ValueError(f"{text!r} is only a part of a number")
        verdicts.append(read(text))
    if not verdicts:
        raise ValueError("there is no verdict in it" if reply.strip() else "it is empty")
    if any(other != verdicts[0] for other in verdicts):
        raise ValueError("it gives several verdicts that differ")
    return verdicts[0]


def mark_of(verdict: Json, scale: Scale) -> Mark:
    """Return a verdict on a scale."""
    if isinstance(scale, str):
        return _yes_or_no(verdict)
    number = number_of(verdict)
    if scale is None:
        return Mark(number, number)
    low, high = scale
    if not low <= number <= high:
        raise ValueError(f"{number:g} is not between {low:g} and {high:g}")
    return Mark(number, (number - low) / (high - low))


def _yes_or_no(verdict: Json) -> Mark:
    word = verdict.strip().rstrip(".").casefold() if isinstance(verdict, str) else None
    if isinstance(verdict, bool):
        word = "yes" if verdict else "no"
    if word not in ("yes", "no"):
        raise ValueError(f"{_short(verdict)} is neither yes nor no")
    return Mark(word, float(word == "yes"))


def number_of(verdict: Json) -> float:
    """Return a plain number, given as a number or as text that holds nothing else."""
    if isinstance(verdict, str):
        text = verdict.strip()
        if not _NUMBER.fullmatch(text):
            raise ValueError(f"{_short(verdict)} is not a number")
        verdict = float(text)
    if isinstance(verdict, bool) or not isinstance(verdict, int | float):
        raise ValueError(f"{_short(verdict)} is not a number")
    try:
        number = float(verdict)
    except OverflowError:
        raise ValueError("the number is too large") from None
    if number in (float("inf"), float("-inf")):
        raise ValueError("the number is too large")
    return number


def json_object(reply: str) -> dict[str, Json]:
    """Return the JSON object that makes up the reply, fenced or not; no key may occur twice."""
    text = without_thinking(reply).strip()
    fenced = _FENCE.fullmatch(text)
    try:
        parsed = json.loads(fenced[1] if fenced else text, object_pairs_hook=_once, parse_constant=_refused)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except json.JSONDecodeError as problem:
        raise ValueError(f"it is not a JSON object: {problem}") from None
    if not isinstance(parsed, dict):
        raise ValueError("it is not a JSON object")
    return parsed


def exactly(value: Json, names: Iterable[str], what: str) -> Mapping[str, Json]:
    """Return the value as an object with exactly these names."""
    names = list(names)
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object with {', '.join(names)}")
    for name in names:
        if name not in value:
            raise ValueError(f"{what} lacks {name!r}")
    for name in value:
        if name not in names:
            raise ValueError(f"{what} has {_short(name)}, which was not asked for")
    return value


def json_mark(reply: str, scale: Scale) -> Mark:
    """Return the verdict in `{"score": …}`."""
    fields = json_object(reply)
    if "score" not in fields:
        raise ValueError("the object has no 'score'")
    return mark_of(fields["score"], scale)


def read_mark(reply: str, extract: str, scale: Scale, *, configured: bool = False) -> Mark:
    """Return the verdict of a reply to a question about one criterion. `configured`: the configuration has `extract`."""
    if extract == JSON:
        return json_mark(reply, scale)
    return marked(reply, (configured_pattern if configured else row_pattern)(extract), scale)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key stands twice in the JSON object")
    return fields


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def _short(verdict: Json) -> str:
    text = repr(verdict)
    return text if len(text) <= 60 else f"{text[:60]}…"
