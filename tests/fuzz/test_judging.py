"""Rubrics of any shape and judges that say anything: taken, or refused with a word about why."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutations import fuzz, mutated_json, mutated_text
from windrow.grading.judge_replies import exactly, json_object, mark_of, read_mark
from windrow.tasks.rubrics import JSON, TAGGED, Scale, rubric_of

T = TypeVar("T")

ROWS: list[Any] = [
    {"rubric": ["Polite?", {"name": "clear", "criterion": "Clear?", "scale": [1, 5], "weight": 2.5}]},
    {"rubric": [{"criterion": "c", "points": 3, "extract": r"(\d+)", "format": "A digit."}]},
    {
        "rubric_items": [
            {
                "rubric_str": "Does it rhyme?",
                "extraction_regex": "<score>(.*)</score>",
                "grader_output_format_instruction": "x",
            }
        ]
    },
]
REPLIES = [
    "It is. <score>yes</score>",
    "<think>hm</think>Nearly.\n<score> 4.5 </score>",
    "Not success",
    '{"why": "so", "score": 4}',
    '```json\n{"score": "no"}\n```',
    '{"scores": {"A": 1, "B": 0.5}}',
    "10/10 points? -3 1e999 1,000 ٣",
]
SCALES: list[Scale] = ["yes/no", (1.0, 5.0), (-1e308, 7e307), None]


def read_or_refused(work: Callable[[], T]) -> T | None:
    """What the work gives, or None where it says why not."""
    try:
        return work()
    except ValueError as problem:
        refused = str(problem)
    assert refused
    return None


@fuzz(400)
@given(mutated_json(ROWS))
def test_a_rubric_is_read_or_refused(row: Any) -> None:
    found = read_or_refused(lambda: rubric_of(row if isinstance(row, dict) else {"rubric": row}))
    if found is not None:
        assert found.criteria
        total = sum(criterion.weight for criterion in found.criteria)
        assert 0 < total < math.inf


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("extract", [TAGGED, JSON, r"(.)", r"(-?\d+|yes|no)"])
@fuzz(60)
@given(reply=mutated_text(REPLIES))
def test_what_a_judge_says_is_a_finite_value_on_its_scale_or_no_verdict(
    scale: Scale, extract: str, reply: str
) -> None:
    mark = read_or_refused(lambda: read_mark(reply, extract, scale))
    if mark is not None:
        assert math.isfinite(mark.value)
        assert scale is None or 0 <= mark.value <= 1
        json.dumps(mark.verdict, allow_nan=False)


@fuzz(200)
@given(mutated_text(REPLIES), st.sampled_from(["A", "B", "score"]))
def test_an_object_has_what_was_asked_for_once_or_is_none(reply: str, name: str) -> None:
    found = read_or_refused(lambda: exactly(json_object(reply), [name], "it"))
    if found is not None:
        assert list(found) == [name]
        read_or_refused(lambda: mark_of(found[name], (0.0, 10.0)))
