"""`hermes`: what models that were trained on <tool_call> tags write, and what they get wrong."""

from __future__ import annotations

import pytest

from tests.support.tool_call_reading import Sample, check, named, read
from windrow.policies.toolcalls import FORMATS

OK = '<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'
ADD = [("add", {"x": 1})]

MALFORMED = [
    Sample(
        "Qwen2.5 of 0.5 to 3 B: a brace too few",
        '<tool_call>\n{"name": "add", "arguments": {"x": 1}\n</tool_call>',
        "not valid JSON",
    ),
    Sample(
        "NousResearch/hermes-agent#115061: balanced but misnested",
        '<tool_call>{"name": "edit", "arguments": {"items": [{"k": 1}, {"k": 2}}}</tool_call>',
        "not valid JSON",
    ),
    Sample(
        "minpeter/ai-sdk-tool-call-middleware#298: a line break inside of a string",
        '<tool_call>{"name":"edit","arguments":{"content":"line1\nline2"}}</tool_call>' + OK,
        "invalid control character",
        ADD,
    ),
    Sample(
        "minpeter/ai-sdk-tool-call-middleware#298: quotes that are not escaped",
        '<tool_call>{"name":"edit","arguments":{"content":"He said "hello" to me"}}</tool_call>',
        "not valid JSON",
    ),
    Sample(
        "odysseus-dev/odysseus#6014: a broken call before a whole one",
        '<tool_call>{"name":"bash","arguments":{broken}}</tool_call>\n' + OK,
        "not valid JSON",
        ADD,
    ),
    Sample(
        "NousResearch/hermes-agent#6841: the payload twice",
        '<tool_call>{"name": "list", "arguments": {"a":1}}{"name": "list", "arguments": {"a":1}}</tool_call>',
        "something stands between the call and </tool_call>",
    ),
    Sample(
        "NousResearch/hermes-agent#13480: cut in the middle of a string",
        OK + '<tool_call>{"name": "write", "arguments": {"text": "# Hermes Agent Guide',
        "not valid JSON",
        ADD,
    ),
    Sample(
        "jyjeanne/crustly#39: Qwen2.5-Coder leaves the tags out",
        '{"name": "add", "arguments": {"x": 1}}',
        "must stand between",
    ),
    Sample(
        "ardanlabs/kronk#950: Qwen2.5-Coder writes a code block",
        '```json\n{"name": "get_weather", "arguments": {"location": "Paris"}}\n```',
        "must stand between",
    ),
    Sample(
        "models trained on OpenAI's wire: arguments as a string",
        '<tool_call>{"name": "add", "arguments": "{\\"x\\": 1}"}</tool_call>',
        "not a JSON object",
    ),
    Sample(
        "typical of small models: null", '<tool_call>{"name": "add", "arguments": null}</tool_call>', "object"
    ),
    Sample(
        "typical of small models: a list",
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        "object",
    ),
    Sample("typical of small models: none", '<tool_call>{"name": "now"}</tool_call>', 'no "arguments"'),
    Sample("typical of small models: no name", '<tool_call>{"arguments": {"x": 1}}</tool_call>', 'no "name"'),
    Sample("typical of small models: words", "<tool_call>\nadd 1 and 2\n</tool_call>", "not valid JSON"),
    Sample(
        "vllm-project/vllm#18791: the opening tag is lost",
        '{"name": "add", "arguments": {"x": 1}}\n</tool_call>',
        "without <tool_call>",
    ),
    Sample("Python's own numbers", '<tool_call>{"name": "add", "arguments": {"x": NaN}}</tool_call>', "JSON"),
]


@pytest.mark.parametrize("sample", MALFORMED, ids=named(MALFORMED))
def test_what_is_malformed_is_told_and_what_stands_beside_it_is_read(sample: Sample) -> None:
    check("hermes", sample)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("I will add.\n" + OK + "\n" + OK, [*ADD, *ADD]),
        ('<tool_call>\n{"name": "add", "arguments": {"x": 1}}', ADD),  # the closing tag was the stop token
        ('<tool_call>[{"name": "add", "arguments": {"x": 1}}]</tool_call>', ADD),  # SmolLM2's own prompt
        (
            # vllm-project/vllm#21544: a brace inside of a string
            '<tool_call>{"name": "run", "arguments": {"command": "mkdir -p test/{test1,test2"}}</tool_call>',
            [("run", {"command": "mkdir -p test/{test1,test2"})],
        ),
        (
            '<tool_call>{"name": "say", "arguments": {"text": "a </tool_call> in a text"}}</tool_call>',
            [("say", {"text": "a </tool_call> in a text"})],
        ),
        ("The answer is 42.", []),
        ('{"answer": 42}', []),
        ("", []),
    ],
)
def test_what_is_right_is_read(text: str, calls: list[object]) -> None:
    assert read("hermes", text) == (calls, ())


def test_the_arguments_keep_the_models_own_text_and_the_prose_is_what_is_left() -> None:
    text = 'Let me see.\n<tool_call>{"name": "add", "arguments": { "x" :1.0,  "y": "\\u00e9"}}</tool_call>\n'
    parsed = FORMATS["hermes"].parse(text)
    assert parsed.calls[0].arguments == '{ "x" :1.0,  "y": "\\u00e9"}'
    assert parsed.content == "Let me see."
