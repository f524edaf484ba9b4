"""`llama`: JSON calls with or without <|python_tag|>, and what goes wrong with them."""

from __future__ import annotations

import pytest

from tests.support.tool_call_reading import Sample, check, named, read

OK = '{"name": "add", "parameters": {"x": 1}}'
ADD = [("add", {"x": 1})]

MALFORMED = [
    Sample(
        "unslothai/unsloth#5620: a built-in call, cut; the object inside of it is not run",
        '<|python_tag|>foo.call(payload={"name":"bar","parameters":{}}',
        "not valid JSON",
    ),
    Sample(
        "ollama/ollama#7824: Llama 3.2 writes Python calls",
        '<|python_tag|>[get_weather(city="SF")]',
        "not valid JSON",
    ),
    Sample(
        "Llama 3.2 of 1 and 3 B: a brace too few", '{"name": "add", "parameters": {"x": 1}', "not valid JSON"
    ),
    Sample(
        "Llama 3.1 8 B: parameters as a string",
        '{"name": "add", "parameters": "{\\"x\\": 1}"}',
        "not a JSON object",
    ),
    Sample(
        "Llama 3.1 8 B, from its template's words: no name",
        '{"type": "function", "function": "add", "parameters": {"x": 1}}',
        'no "name"',
    ),
    Sample("Llama 3.2 of 1 B: a Python dict", "{'name': 'add', 'parameters': {'x': 1}}", "not valid JSON"),
    Sample(
        "Llama 3.2 of 1 B: a comma too many", '{"name": "add", "parameters": {"x": 1,}}', "not valid JSON"
    ),
    Sample("Llama 3.2 of 1 B: Python's True", '{"name": "f", "parameters": {"x": True}}', "not valid JSON"),
    Sample(
        "vllm-project/vllm#11786, calls side by side: the second one is broken",
        OK + '; {"name": "add", "parameters": {"x"}}',
        "not valid JSON",
        ADD,
    ),
    Sample(
        "Llama 3.1 8 B: positional parameters", '{"name": "add", "parameters": [1, 2]}', "not a JSON object"
    ),
    Sample("cut by max_tokens", '{"name": "write", "parameters": {"text": "Once upon', "not valid JSON"),
    Sample("both spellings", '{"name": "f", "parameters": {}, "arguments": {}}', 'both "arguments" and'),
]


@pytest.mark.parametrize("sample", MALFORMED, ids=named(MALFORMED))
def test_what_is_malformed_is_told_and_what_stands_beside_it_is_read(sample: Sample) -> None:
    check("llama", sample)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (OK, ADD),
        (f"<|python_tag|>{OK}<|eom_id|>", ADD),
        (f"{OK}; {OK};", [*ADD, *ADD]),
        (f"I will add.\n\n{OK}\n{OK}", [*ADD, *ADD]),
        # vllm-project/vllm#16214: Llama 4's own tags
        (f"<|python_start|>{OK}<|python_end|>", ADD),
        # vllm-project/vllm#46863: Llama 4 Scout says the type first
        ('{"type": "function", "name": "add", "parameters": {"x": 1}}', ADD),
        # raullenchai/Rapid-MLX#703: fine-tunes drift to OpenAI's key, and not every object with a name is a call
        ('{"name": "add", "arguments": {"x": 1}}', ADD),
        ('Here is a user: {"name": "Alice"}', []),
        ('{"name": "Alice"}', []),
        ("The answer is 42.", []),
    ],
)
def test_what_is_right_is_read(text: str, calls: list[object]) -> None:
    assert read("llama", text) == (calls, ())
