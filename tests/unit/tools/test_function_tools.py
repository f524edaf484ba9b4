"""Functions as tools: what a model is shown of them, and what reaches them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import jsonschema
import pytest

import windrow
from windrow.errors import ToolError, UsageError
from windrow.tools.docstrings import parse_docstring
from windrow.tools.functions import function_tool


class Point(TypedDict):
    x: float
    y: float


@dataclass
class Box:
    width: int
    colour: str = "red"


def properties(function: Any) -> dict[str, Any]:
    tool = function_tool(function)
    jsonschema.Draft202012Validator.check_schema(tool.parameters)
    return dict(tool.parameters["properties"])


def test_a_function_is_described_by_its_signature_its_hints_and_its_docstring() -> None:
    @windrow.tool
    def search(query: str, limit: int = 10, *, site: str | None = None) -> list[str]:
        """Search the web.

        Slowly.

        Args:
            query: what to look for,
                in plain words
            limit (int): how many results
        Returns:
            limit: not an argument
        """
        return [f"{query} {limit} {site}"]

    assert search.schema() == {
        "name": "search",
        "description": "Search the web.\n\nSlowly.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "what to look for, in plain words"},
                "limit": {"type": "integer", "description": "how many results", "default": 10},
                "site": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    }
    assert search.call(query="hay", site="a") == ["hay 10 a"]


def test_a_name_and_a_description_can_be_given() -> None:
    @windrow.tool(name="look-up", description="Finds.")
    def f(x: int) -> int:
        """Not this."""
        return x

    assert (f.name, f.description) == ("look-up", "Finds.")


def test_the_types_of_json_have_schemas() -> None:
    def f(
        flag: bool,
        unit: Literal["c", "f"],
        words: list[str],
        counts: dict[str, int],
        either: int | str,
        point: Point,
        box: Box,
        anything: Any,
        marked: list[int] = [1, 2],  # noqa: B006
    ) -> None: ...

    found = properties(f)
    assert found["flag"] == {"type": "boolean"}
    assert found["unit"] == {"enum": ["c", "f"]}
    assert found["words"] == {"type": "array", "items": {"type": "string"}}
    assert found["counts"] == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert found["either"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert found["anything"] == {}
    assert found["marked"]["default"] == [1, 2]
    schema = function_tool(f).parameters
    assert schema["properties"]["point"] == {"$ref": "#/$defs/Point"}
    assert set(schema["$defs"]) == {"Point", "Box"}
    good = {"flag": True, "unit": "c", "words": [], "counts": {}, "either": 1, "anything": None}
    jsonschema.validate({**good, "point": {"x": 1, "y": 2}, "box": {"width": 1}}, schema)


def test_arguments_reach_the_function_as_its_types() -> None:
    seen: list[Any] = []

    def f(box: Box, ratio: float, n: int = 7) -> None:
        seen.append((box, ratio, n))

    function_tool(f).call(box={"width": 2}, ratio=1)
    assert seen == [(Box(2), 1.0, 7)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "missing required field `a`"),
        ({"a": "1"}, "Expected `int`, got `str` - at `$.a`"),
        ({"a": 1, "b": 2}, "unknown field `b`"),
        ({"a": 1.5}, "Expected `int`, got `float` - at `$.a`"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_the_function_is_not_called(
    arguments: dict[str, Any], said: str
) -> None:
    def f(a: int) -> None:
        raise AssertionError

    with pytest.raises(ToolError) as refused:
        function_tool(f).call(**arguments)
    assert said in str(refused.value)
    assert "the arguments of 'f' do not fit" in str(refused.value)


async def test_an_async_function_is_awaited() -> None:
    @windrow.tool
    async def double(x: int) -> int:
        return 2 * x

    assert await double.call(x=4) == 8


class Opaque: ...


def unhinted(x) -> None: ...  # type: ignore[no-untyped-def]
def opaque(x: Opaque) -> None: ...
def many(*x: int) -> None: ...
def named(**x: int) -> None: ...
def first(x: int, /) -> None: ...
def ambiguous(x: Point | Box) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (unhinted, "tool 'unhinted': parameter 'x' has no type hint"),
        (opaque, "tool 'opaque': parameter 'x' has a type that has no JSON schema"),
        (many, "tool 'many': parameter 'x' cannot be given by its name alone"),
        (named, "tool 'named': parameter 'x' cannot be given by its name alone"),
        (first, "tool 'first': parameter 'x' cannot be given by its name alone"),
        (ambiguous, "tool 'ambiguous': parameter 'x' has a type that has no JSON schema"),
        (lambda: None, "tool '<lambda>': a tool's name is"),
    ],
)
def test_what_cannot_be_described_is_refused(function: Any, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        function_tool(function)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "Do it.\n\nArgs:\n    a: the one\n    b (int, optional): the other:\n        here\n\nReturns:\n    c: no",
        "Do it.\n\nParameters\n----------\na : int\n    the one\nb\n    the other:\n    here\n\nReturns\n-------\nc\n    no",
        "Do it.\n\n:param a: the one\n:param int b: the other:\n    here\n:returns: no",
    ],
    ids=["google", "numpy", "sphinx"],
)
def test_three_ways_of_writing_a_docstring_say_the_same(text: str) -> None:
    assert parse_docstring(text) == ("Do it.", {"a": "the one", "b": "the other: here"})
