"""What holds for every text format: calls survive being written and read, no reply breaks it, none takes long."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.policies.toolcalls import FORMATS, chosen_format
from windrow.records import Call

pytestmark = pytest.mark.slow

numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    [
        *(
            "5",
            "true",
            "null",
            '"quoted"',
            "{}",
            "\n",
            "\n\n",
            " x ",
            "</parameter>",
            "<function=f>",
            "</tool_call>",
        ),
        *("```", "\n```\n", "Observation: 3", "Action: f", "<|python_tag|>", "; {", "</think>"),
    ]
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=3,
)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
keys = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
calls = st.lists(st.tuples(names, st.dictionaries(keys, values, max_size=3)), min_size=1, max_size=4)

PIECES = [
    *(
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": {}}',
        '{"name": "f", "parameters": {',
        "}",
        ";",
        "{",
    ),
    *(
        "<function=f>",
        "</function>",
        "<parameter=a>",
        "</parameter>",
        '<invoke name="f">',
        "<function=",
        "<think>",
    ),
    *(
        "Action: f\n",
        "Action Input: ",
        "Observation:",
        "```tool_call\n",
        "```json\n",
        "\n```\n",
        "<|python_tag|>",
    ),
    *("[", "]", '"', "\\", "\n", "\ud800", "\u2028", "1e999", "NaN", "é"),
]
replies = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=30).map("".join)
forms = pytest.mark.parametrize("form", list(FORMATS))


def made(drawn: list[tuple[str, dict[str, Any]]]) -> list[Call]:
    return [
        Call(id=f"call_{n}", name=name, arguments=msgspec.json.encode(arguments).decode())
        for n, (name, arguments) in enumerate(drawn)
    ]


@settings(max_examples=60)
@given(drawn=calls)
def test_calls_are_read_as_they_were_written(drawn: list[Any]) -> None:
    """Each case in every format: it is the drawing of one that takes time."""
    written = made(drawn)
    for form, how in FORMATS.items():
        parsed = how.parse("\n".join(how.render_call(call) for call in written))
        assert (form, parsed.malformed, parsed.content) == (form, (), "")
        assert (form, parsed.calls) == (form, tuple(written))


@given(text=replies | st.text(st.characters(codec=None)))
def test_no_reply_raises_and_every_call_has_an_object(text: str) -> None:
    for form, how in FORMATS.items():
        for call in how.parse(text).calls:
            assert call.name, form
            assert isinstance(msgspec.json.decode(call.arguments), dict), form


@forms
def test_a_call_without_arguments_is_an_empty_object_and_a_broken_one_is_shown_as_it_is(form: str) -> None:
    none, broken = (FORMATS[form].render_call(Call(id="c", name="f", arguments=a)) for a in ("", '{"x'))
    assert [call.arguments for call in FORMATS[form].parse(none).calls] == ["{}"]
    assert '{"x' in broken
    assert FORMATS[form].parse(broken).calls == ()


HOSTILE = [
    *(
        '<tool_call>{"',
        "<tool_call>[",
        '<tool_call>{"name":\n',
        "</tool_call>",
        "<tool_call>",
        '{"name":\n',
        ';{"a":\n',
    ),
    *(
        '{"name":',
        '<|python_tag|>{"',
        "<|python_tag|>",
        "<function=",
        "<function=a>",
        "<function=a><parameter=b>",
    ),
    *(
        "<parameter=b>",
        "</parameter>",
        "<function   ",
        '<invoke name="',
        "Action:\n",
        "Action: f\nAction Input: {\n",
    ),
    *(
        "Action Input:",
        "Action: f\n\n\n",
        "```\n",
        "```json\n{\n",
        "```tool_call\n[\n",
        "[",
        "{",
        '"',
        "\\",
        " ",
        "\n",
    ),
    *("<think>", "</think>", "a", '```json\n{"name": "arguments"'),
]


@forms
@pytest.mark.parametrize("unit", HOSTILE)
def test_reading_takes_linear_time(form: str, unit: str) -> None:
    """In quadratic time a megabyte would take hours: the test's own limit would end it."""
    FORMATS[form].parse(unit * (1_000_000 // len(unit)))


@forms
def test_the_description_names_every_tool_and_shows_how_to_call(form: str) -> None:
    tools = [
        {"name": name, "description": f"does {name}", "parameters": {"type": "object"}}
        for name in ("add", "sub")
    ]
    said = FORMATS[form].describe(tools)
    assert all(text in said for text in ("add", "does add", "sub", "does sub", "object"))


@pytest.mark.parametrize(
    ("model", "form"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "hermes"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "hermes"),
        ("qwen3-coder:30b", "xml"),
        ("meta-llama/Llama-3.2-3B-Instruct", "llama"),
        ("gpt-4o", "native"),
        ("stub", "native"),
    ],
)
def test_the_format_goes_by_the_models_name(model: str, form: str) -> None:
    assert chosen_format(model) == form
