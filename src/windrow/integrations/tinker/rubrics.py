"""Rubrics as tinker-cookbook's rows have them: `rubric_items`, each with `rubric_str`, `extraction_regex` and
`grader_output_format_instruction`. The numbers of the judge stand for themselves: they are not scaled.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from windrow.records import Json
from windrow.tasks.rubrics import Criterion, Rubric, check_pattern

FORMAT_COEF = 0.1  # what a reply that was cut off loses


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    rubric_str: str
    extraction_regex: str = r"<score>(.*)</score>"
    grader_output_format_instruction: str = "End with a number from 0 to 1: <score>NUMBER</score>"


def read_rubric(items: Json) -> Rubric:
    """The rubric in the field `rubric_items`; ValueError says what is wrong with it."""
    if not isinstance(items, list) or not items:
        raise ValueError("'rubric_items' must be a list of at least one item")
    try:
        read: Sequence[_Item] = msgspec.convert(items, list[_Item])
    except msgspec.ValidationError as problem:
        raise ValueError(f"'rubric_items': {problem}") from None
    for number, item in enumerate(read):
        check_pattern(item.extraction_regex, f"rubric_items[{number}]: 'extraction_regex'")
    return Rubric(
        criteria=tuple(
            Criterion(
                name=str(number),
                text=item.rubric_str,
                scale=None,
                extract=item.extraction_regex,
                format=item.grader_output_format_instruction,
            )
            for number, item in enumerate(read, 1)
        ),
        format_coef=FORMAT_COEF,
    )
