"""`react`: Thought, Action, Action Input, Observation, and how models stray from it."""

from __future__ import annotations

import pytest

from tests.support.tool_call_reading import Sample, check, named, read

OK = 'Thought: I should add.\nAction: add\nAction Input: {"x": 1}'
ADD = [("add", {"x": 1})]

MALFORMED = [
    Sample(
        "crewAIInc/crewAI#4186: an action that is none",
        "Thought: the tool cannot be used\nAction: None (direct response required)",
        "without 'Action Input:'",
    ),
    Sample(
        "langchain-ai/langchain#20704: Llama 3 gives a string, and invents the result",
        'Action: Search\nAction Input: "Shohei Ohtani home runs 2022"\nObservation: 34\n' + OK,
        "must be a JSON object",
    ),
    Sample(
        "run-llama/llama_index#10322: a Python dict",
        "Action: look_up_wikipedia\nAction Input: {'pages': ['Coca-Cola'], 'query_str': ''}",
        "not valid JSON",
    ),
    Sample(
        "run-llama/llama_index#12455: the input beside the name",
        'Thought: I need to use a tool.\nAction: search ({"input": "x"})',
        "without 'Action Input:'",
    ),
    Sample("small models: the action is left out", 'Action Input: {"x": 1}', "without 'Action:'"),
    Sample("small models: the name is left out", 'Action:\nAction Input: {"x": 1}', "without the name"),
    Sample("cut by max_tokens", 'Action: add\nAction Input: {"x": 1, "y', "not valid JSON"),
    Sample("cut by max_tokens, earlier", OK + "\nAction: add\nAction", "without 'Action Input:'", ADD),
    Sample(
        "typical: words after the object", 'Action: add\nAction Input: {"x": 1} which adds', "stands after"
    ),
    Sample("typical: a list", "Action: add\nAction Input: [1, 2]", "must be a JSON object"),
    Sample(
        "typical: positional words", "Action: add\nAction Input: 1, 2\n" + OK, "must be a JSON object", ADD
    ),
    Sample("typical: nothing", "Action: now\nAction Input:", "must be a JSON object"),
]


@pytest.mark.parametrize("sample", MALFORMED, ids=named(MALFORMED))
def test_what_is_malformed_is_told_and_what_stands_beside_it_is_read(sample: Sample) -> None:
    check("react", sample)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (OK, ADD),
        (OK + "\n" + OK, [*ADD, *ADD]),
        # run-llama/llama_index#19187: no thought
        (
            'To answer, I hand over.\n\nAction: handoff\nAction Input: {"to": "research"}',
            [("handoff", {"to": "research"})],
        ),
        # langchain-ai/langchain#5601, crewAIInc/crewAI#1545: an invented result and an answer built on it
        (OK + "\nObservation: 7\n" + OK + "\nFinal Answer: 7", ADD),
        (OK + "\nFinal Answer: 7", ADD),
        ('**Action:** `add`\n**Action Input:**\n```json\n{\n  "x": 1\n}\n```\n', ADD),
        ('Action 1: add\nAction Input 1: {"x": 1}', ADD),
        ("Thought: I now know the final answer\nFinal Answer: 42", []),
        ("The Action: none of it is at the start of a line", []),
    ],
)
def test_what_is_right_is_read(text: str, calls: list[object]) -> None:
    assert read("react", text) == (calls, ())
