"""Tool calls of any text and arguments of any JSON: run, or told to the model.

tests/unit/policies/test_toolcalls_properties.py has text made of the formats' own pieces; here whole calls are broken.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutations import fuzz, mutated_json, mutated_text
from windrow.config import LimitsConfig
from windrow.engine.tool_calls import run_calls
from windrow.policies.toolcalls import FORMATS
from windrow.records import Call
from windrow.tools.functions import as_tool
from windrow.tools.toolbox import Offer
from windrow.util.blobs import MemoryBlobs

CALLS = [
    Call(id="a", name="add", arguments='{"a": 1, "b": [2.5, null, {"c": "é😀"}]}'),
    Call(id="b", name="look", arguments='{"place": "a\\nb </tool_call> ``` Observation: x"}'),
]
ARGUMENTS: list[dict[str, Any]] = [
    {"count": 3, "word": "x", "share": 0.5, "names": ["a"], "deep": {"a": {"b": 1}}, "flag": True}
]


def written(form: str) -> list[str]:
    texts = [FORMATS[form].render_call(call) for call in CALLS]
    return [*texts, "Let me look.\n" + "\n".join(texts) + "\nDone."]


@pytest.mark.parametrize("form", list(FORMATS))
@fuzz(120)
@given(data=st.data())
def test_calls_that_were_broken_are_read_or_told(form: str, data: st.DataObject) -> None:
    parsed = FORMATS[form].parse(data.draw(mutated_text(written(form))))
    for call in parsed.calls:
        assert call.name
        assert isinstance(msgspec.json.decode(call.arguments), dict)
    assert all(isinstance(text, str) and text for text in parsed.malformed)


def look(count: int, word: str, share: float = 0.5, names: list[str] | None = None, deep: dict | None = None, flag: bool = False) -> str:  # fmt: skip
    """Look at things."""
    return f"{count + 1} {word.upper()} {share / 2} {names} {deep} {flag}"


@fuzz(250)
@given(arguments=mutated_json(ARGUMENTS), name=st.sampled_from(["look", "", "lo\0ok", "\ud83d", "x" * 500]))
def test_arguments_of_any_json_are_answered(arguments: bytes, name: str) -> None:
    offer = Offer({"look": as_tool(look)}, frozenset({"denied"}))
    call = Call(id="c", name=name, arguments=arguments.decode(errors="surrogateescape"))
    results, records = asyncio.run(run_calls((call,), offer, LimitsConfig(), MemoryBlobs(), first_result=1))
    assert len(results) == len(records) == 1
    assert isinstance(results[0].content, str)
    assert results[0].failed == records[0].failed
