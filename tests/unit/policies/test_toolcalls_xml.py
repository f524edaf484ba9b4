"""`xml`: tags for the function and its parameters, as Qwen3-Coder writes them, and what it leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tool_call_reading import Sample, check, named, read

OK = "<tool_call>\n<function=add>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"
ADD = [("add", {"x": 1})]

MALFORMED = [
    Sample(
        "ollama/ollama#17276: a parameter closed by </function>",
        "<function=add>\n<parameter=x>\n1\n</function>\n" + OK,
        "the parameter 'x' of 'add' is not closed",
        ADD,
    ),
    Sample(
        "ollama/ollama#17914: </parameter> left out between two",
        "<function=f>\n<parameter=a>\n1\n<parameter=b>\n2\n</parameter>\n</function>",
        "the parameter 'a' of 'f' is not closed",
    ),
    Sample("ollama/ollama#17914: the end is missing", "<function=f>\n<parameter=a>\nhello", "is not closed"),
    Sample(
        "vllm-project/vllm#39771: a parameter's tag without its >",
        "<function=fetch>\n<parameter=url\nhttps://example.com\n</parameter>\n</function>",
        "not a whole tag",
    ),
    Sample(
        "typical of small models: a function without a name", "<function=>\n</function>", "not a whole tag"
    ),
    Sample("cut by max_tokens", "<tool_call>\n<function=add>\n", "the function 'add' is not closed"),
    Sample(
        "the opening of the function is lost",
        "<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
        "outside of a function",
    ),
    Sample(
        "repetition in long contexts",
        "<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>",
        "given twice",
    ),
    Sample(
        "typical of small models: words between the parameters",
        "<function=f><parameter=a>1</parameter> and then <parameter=b>2</parameter></function>",
        "text stands between",
    ),
    Sample(
        "Llama 3.1's custom functions: a list in place of the object",
        "<function=f>[1, 2]</function>",
        "text stands between",
    ),
    Sample(
        "Llama 3.1's custom functions: broken JSON",
        '<function=f>{"a": 1</function>',
        "not a JSON object",
    ),
    Sample(
        "the second call begins before the first has ended",
        "<function=f><parameter=a>1</parameter>" + OK,
        "inside of the function 'f'",
        ADD,
    ),
]


@pytest.mark.parametrize("sample", MALFORMED, ids=named(MALFORMED))
def test_what_is_malformed_is_told_and_what_stands_beside_it_is_read(sample: Sample) -> None:
    check("xml", sample)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("I will add.\n" + OK + OK, [*ADD, *ADD]),
        # ollama/ollama#16686: the opening <tool_call> is left out, the closing one is not
        (
            "I'll use the Glob tool.\n\n<function=Glob>\n<parameter=pattern>\n*.md\n</parameter>\n</function>\n</tool_call>",
            [("Glob", {"pattern": "*.md"})],
        ),
        (
            '<function_calls><invoke name="bash"><parameter name="command">echo ok</parameter></invoke></function_calls>',
            [("bash", {"command": "echo ok"})],
        ),
        ('<function=f>{"a": 1}</function>', [("f", {"a": 1})]),
        ("<function=now>\n</function>", [("now", {})]),
        (
            "<function=w><parameter=t>\n\n  if a < b:\n    pass\n\n</parameter></function>",
            [("w", {"t": "\n  if a < b:\n    pass\n"})],
        ),
        ("The answer is <b>42</b>.", []),
    ],
)
def test_what_is_right_is_read(text: str, calls: list[object]) -> None:
    assert read("xml", text) == (calls, ())


def test_the_schema_says_which_values_are_text() -> None:
    properties = {"text": {"type": "string"}, "n": {"type": "integer"}}
    tools: Any = [{"name": "w", "parameters": {"type": "object", "properties": properties}}]
    text = "<function=w><parameter=text>\n5\n</parameter><parameter=n>\n5\n</parameter></function>"
    assert read("xml", text, tools) == ([("w", {"text": "5", "n": 5})], ())
    assert read("xml", text) == ([("w", {"text": 5, "n": 5})], ())
