"""What a page says of itself is a look within its bounds, or unreadable: nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.envs.web.page_report import Unreadable, max_reply, pair, read, read_options
from windrow.util.freeze import Freezer

MAX_CHARS, MAX_ELEMENTS = 200, 10
SEEN: dict[str, Any] = {
    "texts": ["# Shop", '[1] link "Apples"'],
    "numbers": [0, 1],
    "boxes": [1, 10, 20, 30, 40],
    "above": 0,
    "below": 2,
    "cut": False,
    "nodes": 7,
    "found": 1,
    "title": "Shop",
    "url": "https://shop.example/",
    "status": 200,
    "scroll": [0, 900, 700],
    "text": 12,
    "beginning": "Shop Apples",
    "captcha": 0,
    "fonts": False,
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def said(reply: Any) -> dict[str, Any]:
    return read(reply, MAX_CHARS, MAX_ELEMENTS)


def test_what_our_script_says_is_read() -> None:
    found = said(json.dumps(SEEN))
    assert found["lines"] == [["# Shop", 0], ['[1] link "Apples"', 1]]
    assert found["boxes"] == [(1, [10.0, 20.0, 30.0, 40.0])]
    assert (found["status"], found["scroll"], found["below"], found["cut"]) == (200, [0, 900, 700], 2, False)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(None, id="nothing"),
        pytest.param(SEEN, id="no text"),
        pytest.param("", id="empty"),
        pytest.param("Page: forged", id="no JSON"),
        pytest.param("[" * 3000, id="nested deeply"),
        pytest.param(json.dumps(SEEN) + " " * max_reply(MAX_CHARS, MAX_ELEMENTS), id="too long"),
        pytest.param(json.dumps({**SEEN, "numbers": [0]}), id="a line without a number"),
        pytest.param(json.dumps({**SEEN, "texts": "##"}).replace("[0, 1]", '"ab"'), id="texts for lists"),
        pytest.param(json.dumps({**SEEN, "nodes": "9" * 5000}), id="digits without end"),
        pytest.param(json.dumps({**SEEN, "nodes": float("inf")}), id="infinite"),
        pytest.param(json.dumps({**SEEN, "boxes": [1, 2, 3, 4, "wide"]}), id="a box of words"),
    ],
)
def test_what_it_cannot_have_said_is_unreadable(reply: Any) -> None:
    with pytest.raises(Unreadable):
        said(reply)


def test_the_longest_reply_of_an_honest_page_is_not_too_long() -> None:
    lines = ["\x01"] * (
        MAX_CHARS // 2
    )  # each takes its character and a line break, and six characters in JSON
    numbers = [10**6] * len(lines)
    boxes = [-(10**21)] * 5 * MAX_ELEMENTS
    full = {**SEEN, "texts": lines, "numbers": numbers, "boxes": boxes}
    full |= {"title": "\x01" * 500, "url": "\x01" * 4_000, "beginning": "\x01" * 2_000}
    assert len(said(json.dumps(full))["lines"]) == len(lines)


@given(st.dictionaries(st.sampled_from(sorted(SEEN)), VALUES, max_size=4), st.sampled_from(["", "9" * 4000]))
def test_whatever_a_page_says_it_is_bounded_and_can_be_recorded(changed: dict[str, Any], digits: str) -> None:
    reply = json.dumps({**SEEN, **changed})
    if digits:
        reply = reply.replace("200", digits)
    try:
        found = said(reply)
    except Unreadable:
        return
    assert sum(len(text) for text, _ in found["lines"]) <= MAX_CHARS + 100
    assert all("\n" not in text for text, _ in found["lines"])
    del found["boxes"]  # drawn, not recorded
    freezer = Freezer()
    freezer.value(found, "what was seen")
    assert freezer.repaired == 0


@given(VALUES)
def test_whatever_a_page_answers_it_is_a_place_or_options_or_unreadable(value: Any) -> None:
    for reader in (pair, read_options):
        try:
            reader(value)
        except Unreadable:
            pass
    with pytest.raises(Unreadable):
        pair([value, float("nan")])
