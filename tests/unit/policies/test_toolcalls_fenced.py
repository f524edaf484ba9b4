"""`fenced`: calls in code blocks, beside code blocks that are none."""

from __future__ import annotations

import pytest

from tests.support.tool_call_reading import Sample, check, named, read

OK = '```tool_call\n{"name": "add", "arguments": {"x": 1}}\n```'
ADD = [("add", {"x": 1})]

MALFORMED = [
    Sample("Gemma 2: a Python call", "```tool_call\nadd(1, 2)\n```\n" + OK, "not valid JSON", ADD),
    Sample(
        "Mistral 7 B: a Python dict", "```json\n{'name': 'add', 'arguments': {'x': 1}}\n```", "not valid JSON"
    ),
    Sample(
        "Phi-3: a comma too many", '```json\n{"name": "add", "arguments": {"x": 1},}\n```', "not valid JSON"
    ),
    Sample(
        "Phi-3: a comment", '```json\n{"name": "add", // sum\n "arguments": {"x": 1}}\n```', "not valid JSON"
    ),
    Sample(
        "ollama/ollama#5976: Mistral Nemo writes JSON-RPC",
        '```tool_call\n{"jsonrpc": "2.0", "method": "eval", "params": {"expression": "5 / 6"}}\n```',
        'no "name"',
    ),
    Sample(
        "TheBadFella/CatGPT#83: wrapped, and cut",
        '```tool_call\n{"tool_calls":[{"name":"bash","argumen',
        "not valid JSON",
    ),
    Sample(
        "minpeter/ai-sdk-tool-call-middleware#298: a line break inside of a string",
        '```tool_call\n{"name": "edit", "arguments": {"content": "line1\nline2"}}\n```',
        "invalid control character",
    ),
    Sample(
        "two calls in one block",
        '```tool_call\n{"name": "a", "arguments": {}}\n{"name": "b", "arguments": {}}\n```',
        "closing ```",
    ),
    Sample("an empty block", "```tool_call\n```", "not valid JSON"),
    Sample("OpenAI's wire", '```json\n{"name": "add", "arguments": "{}"}\n```', "not a JSON object"),
    Sample("an empty list", "```tool_calls\n[]\n```", "empty"),
    Sample("no arguments", '```tool_call\n{"name": "now"}\n```', 'no "arguments"'),
]


@pytest.mark.parametrize("sample", MALFORMED, ids=named(MALFORMED))
def test_what_is_malformed_is_told_and_what_stands_beside_it_is_read(sample: Sample) -> None:
    check("fenced", sample)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (f"I will add.\n{OK}\nand again\n{OK}", [*ADD, *ADD]),
        # ardanlabs/kronk#950, ollama/ollama#16821: Qwen2.5-Coder
        ('```json\n{"name": "add", "arguments": {"x": 1}}\n```', ADD),
        ('```json\n{"name": "add", "arguments": {"x": 1}}', ADD),
        ('```\n{"name": "add", "parameters": {"x": 1}}```', ADD),
        ('```json\n{"answer": 42}\n```', []),
        ("```json\n[1, 2]\n```\n" + OK, ADD),
        ("```json\n{not json}\n```", []),
        ("```python\nprint({'name': 1})\n```", []),
        ('```tool_call\n{"name": "w", "arguments": {"text": "a ``` b"}}\n```', [("w", {"text": "a ``` b"})]),
    ],
)
def test_what_is_right_is_read(text: str, calls: list[object]) -> None:
    assert read("fenced", text) == (calls, ())
