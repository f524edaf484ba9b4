"""How the tests of the text formats read a reply: the calls as (name, arguments), and what could not be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from windrow.policies.toolcalls import FORMATS


class Sample(NamedTuple):
    """A reply that went wrong somewhere, `source` (a thread, or the models it is typical of), and what is told."""

    source: str
    text: str
    told: str  # part of the first complaint
    calls: Sequence[tuple[str, Any]] = ()  # the calls beside it that are run all the same


def read(form: str, text: str, tools: Any = ()) -> tuple[list[tuple[str, Any]], tuple[str, ...]]:
    parsed = FORMATS[form].parse(text, tools)
    return [(call.name, msgspec.json.decode(call.arguments)) for call in parsed.calls], parsed.malformed


def check(form: str, sample: Sample) -> None:
    calls, malformed = read(form, sample.text)
    assert malformed, "read as if nothing were wrong"
    assert sample.told in malformed[0]
    assert calls == list(sample.calls)


def named(samples: list[Sample]) -> list[str]:
    return [f"{number}-{sample.source}" for number, sample in enumerate(samples)]
