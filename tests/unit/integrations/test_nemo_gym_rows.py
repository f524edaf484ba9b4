"""NeMo Gym's rows and results, as documented: what is read of them, and that writing gives back what was read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.agents import InputMessage, ModelTurn
from windrow.engine.external_episode import record_pieces
from windrow.engine.record_building import build_rollout
from windrow.engine.recorder import Recorder
from windrow.integrations.nemo_gym.items import read_output
from windrow.integrations.nemo_gym.json_differences import applied, difference
from windrow.integrations.nemo_gym.results import read_result, result_row, with_answer
from windrow.integrations.nemo_gym.rows import (
    is_row,
    opening_of,
    sampling_of,
    seed_of,
    split_row,
    with_seed,
    without_seed,
)
from windrow.records import Json, PolicyRecord, Rollout, Task
from windrow.tasks.plan import Slot

pytestmark = pytest.mark.slow

ROW: dict[str, Json] = {
    "responses_create_params": {"input": [{"role": "user", "content": "2+2?"}], "tools": []},
    "agent_ref": {"type": "responses_api_agents", "name": "math_agent"},
    "expected_answer": "4",
}


def said(text: str, **more: Json) -> dict[str, Json]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "type": "message",
        "id": "m1",
        "role": "assistant",
        "status": "completed",
        "content": [part],
        **more,
    }


def tokens(prompt: list[int], output: list[int]) -> dict[str, Json]:
    return {
        "prompt_token_ids": prompt,
        "generation_token_ids": output,
        "generation_log_probs": [-0.5 * n for n in range(1, len(output) + 1)],
    }


def answer(*output: Json, **more: Json) -> dict[str, Json]:
    usage = {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 16,
    }
    response = {
        "id": "r",
        "created_at": 17,
        "model": "m",
        "object": "response",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }
    return {
        "responses_create_params": ROW["responses_create_params"],
        "agent_ref": ROW["agent_ref"],
        "response": response,
        "reward": 1.0,
        **more,
    }


TOOL_EPISODE = (
    {
        "type": "reasoning",
        "id": "rs",
        "summary": [{"type": "summary_text", "text": "add"}],
        "encrypted_content": None,
    },
    {
        "type": "function_call",
        "id": "fc",
        "call_id": "c1",
        "name": "add",
        "arguments": '{"a": 2,"b":2}',
        "status": "completed",
        **tokens([1, 2, 3], [4, 5]),
    },
    {"type": "function_call_output", "call_id": "c1", "output": "4"},
    said("It is 4.", **tokens([1, 2, 3, 4, 5, 6], [7])),
)


def recorded(result_of: dict[str, Json]) -> Rollout:
    """An answer to ROW, as a rollout."""
    task = Task(key="t", digest="d", source="s", split=None, index=0, tags=(), data=ROW)
    slot = Slot(number=0, id="i", attempt=1, group="g", sample=0, seed=1, task=task, recorded_task=task)
    policy = PolicyRecord(model="m", sampling={}, fingerprint="f")
    recorder = Recorder(slot, env="problem", agent="math_agent", policy=policy, capture="tokens")
    recorder.add(opening_of(ROW), "task")
    result = read_result(result_of, ROW)
    record_pieces(recorder, result.pieces)
    recorder.outcome.end("completed", "answered")
    return with_answer(build_rollout(recorder), result_of, result.fields)


def test_a_row_is_its_content_and_its_marks() -> None:
    content, marks = split_row({**ROW, "_ng_task_index": 7, "_ng_rollout_index": 2, "_ng_rollout_id": "x"})
    assert content == ROW
    assert (marks.task, marks.rollout) == (7, 2)
    assert is_row(ROW)
    assert not is_row({"prompt": "2+2?"})


@pytest.mark.parametrize("bad", [-1, 1.5, "0", True])
def test_a_mark_that_is_no_number_is_refused(bad: Json) -> None:
    with pytest.raises(ValueError, match="'_ng_task_index' must be a whole number"):
        split_row({**ROW, "_ng_task_index": bad})


def test_a_seed_that_numbers_the_rollout_is_no_part_of_the_task() -> None:
    params = ROW["responses_create_params"]
    rows = [
        {**ROW, "responses_create_params": with_seed(params, n), "_ng_task_index": 0, "_ng_rollout_index": n}
        for n in range(3)
    ]
    assert rows[2]["responses_create_params"]["metadata"] == {"extra_body": '{"seed": 2}'}
    assert [split_row(row)[0] for row in rows] == [ROW] * 3


def test_a_seed_of_the_rows_own_stays() -> None:
    row = {
        **ROW,
        "responses_create_params": with_seed(ROW["responses_create_params"], 99),
        "_ng_rollout_index": 0,
    }
    assert seed_of(split_row(row)[0]["responses_create_params"]) == 99


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["min_p", "top_k"]), st.integers(0, 9)), st.integers(0, 99))
def test_taking_a_seed_out_gives_back_what_was_there_before_it(body: dict[str, int], seed: int) -> None:
    params: dict[str, Any] = {"input": "x"}
    before = without_seed(with_seed(params, 0))
    assert before == params
    full = {**params, "metadata": {"extra_body": json.dumps(body), "note": "n"}} if body else params
    assert without_seed(with_seed(full, seed)) == full


@given(json_values, json_values)
def test_a_difference_applied_gives_the_other_value(a: Json, b: Json) -> None:
    made = applied(a, difference(a, b))
    assert json.dumps(made, sort_keys=True) == json.dumps(b, sort_keys=True)
    assert difference(made, b) is None
    assert difference(b, b) is None


@pytest.mark.parametrize(
    ("a", "b"), [(1, True), ({"x": 0}, {"x": False}), ([1], [1.0]), (0.0, -0.0), ({"x": [1]}, {"x": [True]})]
)
def test_what_python_calls_equal_may_differ_in_json(a: Json, b: Json) -> None:
    assert repr(applied(a, difference(a, b))) == repr(b)


def test_input_and_instructions_open_the_episode() -> None:
    row = {"responses_create_params": {"input": "2+2?", "instructions": "Be brief."}}
    assert opening_of(row) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
    ]


def test_input_items_become_messages_with_their_calls() -> None:
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": "2+2?"},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "4"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "and this?"},
                {"type": "input_image", "image_url": "data:x", "detail": "low"},
            ],
        },
    ]
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}
    assert opening_of({"responses_create_params": {"input": items}}) == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "c"},
        {"role": "user", "content": [{"type": "text", "text": "and this?"}, image]},
    ]


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({}, "has no 'input'"),
        ({"input": []}, "has no 'input'"),
        ({"input": {"role": "user"}}, "has no 'input'"),
        ({"input": ["hello"]}, r"input\[0\] must be an object"),
        ({"input": [{"content": "hello"}]}, r"input\[0\]: 'role' must be one of"),
        ({"input": [{"role": "user", "content": 4}]}, r"input\[0\]: the content must be"),
        ({"input": "x", "instructions": 4}, "instructions must be a string"),
    ],
)
def test_an_input_that_cannot_be_read_is_said_to_be(params: dict[str, Json], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        opening_of({"responses_create_params": params})


def test_the_rows_sampling_is_in_our_words() -> None:
    params = {"temperature": 0.5, "top_p": None, "max_output_tokens": 64, "reasoning": {"effort": "low"}}
    assert sampling_of({"responses_create_params": params}) == {
        "temperature": 0.5,
        "max_tokens": 64,
        "reasoning_effort": "low",
    }


def test_model_calls_end_with_their_tokens_or_before_what_others_say() -> None:
    pieces = read_output(
        [said("a", **tokens([1], [2])), said("b"), *TOOL_EPISODE[2:], {"role": "user", "content": "?"}]
    )
    kinds = [type(piece) for piece in pieces]
    assert kinds == [ModelTurn, ModelTurn, InputMessage, ModelTurn, InputMessage]


def test_a_result_becomes_messages_turns_and_tokens() -> None:
    rollout = recorded(answer(*TOOL_EPISODE, expected_answer="4", accuracy=True))
    roles = [(message.role, message.origin) for message in rollout.messages]
    assert roles == [("user", "task"), ("assistant", "policy"), ("tool", "tool"), ("assistant", "policy")]
    first, second = rollout.turns
    assert rollout.messages[1].reasoning == "add"
    assert first.tool_calls[0].arguments == {"a": 2, "b": 2}
    assert first.tool_calls[0].result == 2
    assert second.tokens is not None
    assert (second.tokens.continues, second.tokens.prefix) == (0, 5)
    assert rollout.capture == "tokens"
    assert (rollout.usage.prompt_tokens, rollout.usage.completion_tokens, rollout.usage.cached_tokens) == (
        11,
        5,
        3,
    )
    assert rollout.state["nemo_gym"]["fields"] == {"accuracy": True}


@pytest.mark.parametrize(
    "given",
    [
        answer(*TOOL_EPISODE, accuracy=1.0, judge={"why": ["x"]}, expected_answer="4"),
        answer(said("4"), said("4, again"), mask_sample=True),
        answer({"type": "mcp_call", "id": "x", "name": "n", "output": "o"}, said("4")),
        answer(
            said("4"), {"role": "user", "content": [{"type": "input_text", "text": "sure?"}]}, said("yes")
        ),
        answer(
            {
                "type": "reasoning",
                "id": "rs",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "t"}],
            }
        ),
        answer(),
    ],
)
def test_a_result_is_written_as_it_was_read(given: dict[str, Json]) -> None:
    written = result_row(recorded(given)) | {"reward": given["reward"]}
    assert written == given


def test_what_was_said_is_kept_once() -> None:
    text = "a long reply " * 50
    state = recorded(answer(said(text, **tokens([1, 2], [3])))).state
    assert "long reply" not in str(state)
    assert "token_ids" not in str(state)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ({"response": None}, "'response' must be an object"),
        ({"reward": None}, "'reward' must be a finite number"),
        ({"reward": float("nan")}, "'reward' must be a finite number"),
        ({"reward": True}, "'reward' must be a finite number"),
        ({"reward": 10**400}, "'reward' must be a finite number"),
        ({"response": {"output": "x"}}, "response.output must be a list"),
        ({"response": {"output": [said("x", prompt_token_ids=[1])]}}, "but not all of"),
        (
            {"response": {"output": [said("x", **tokens([1], [2])) | {"generation_log_probs": []}]}},
            "1 generation_token",
        ),
        ({"response": {"output": [said("x", **tokens([1], [2**40]))]}}, "cannot be kept"),
        ({"response": {"output": [{"type": "function_call", "name": "x"}]}}, "lacks 'call_id'"),
    ],
)
def test_a_result_that_cannot_be_read_is_said_to_be(broken: dict[str, Json], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_result({**answer(said("4")), **broken}, ROW)


def test_a_failure_needs_neither_response_nor_reward() -> None:
    result = read_result(
        {"_ng_failure_class": "transient", "error": "gone", "_ng_failure_terminal": True}, ROW
    )
    assert result.failure is not None
    error = result.failure.record
    assert (error.owner, error.kind, error.message, error.retryable) == ("infra", "transient", "gone", False)


def test_a_response_that_was_cut_says_so() -> None:
    cut = answer(said("4"))
    cut["response"]["incomplete_details"] = {"reason": "max_output_tokens"}
    result = read_result(cut, ROW)
    last = result.pieces[-1]
    assert isinstance(last, ModelTurn)
    assert (result.incomplete, last.completion.finish) == ("max_output_tokens", "length")


texts = st.text(max_size=6)
said_items = st.one_of(
    st.builds(lambda text, id: {**said(text), "id": id}, texts, texts),
    st.builds(
        lambda text: {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": text}]},
        texts,
    ),
    st.builds(
        lambda id, text: {
            "type": "function_call",
            "call_id": id,
            "name": "add",
            "arguments": text,
            "id": "fc",
        },
        st.sampled_from("ab"),
        texts,
    ),
    st.builds(lambda text: {"type": "mcp_call", "id": text, "output": text}, texts),
)
heard_items = st.one_of(
    st.builds(
        lambda id, text: {"type": "function_call_output", "call_id": id, "output": text},
        st.sampled_from("ab"),
        texts | st.lists(st.builds(lambda text: {"type": "input_text", "text": text}, texts), max_size=2),
    ),
    st.builds(lambda text: {"role": "user", "content": text}, texts),
    st.builds(lambda text: {"type": "message", "role": "developer", "content": text, "status": "x"}, texts),
)
ids = st.lists(st.integers(0, 9), min_size=1, max_size=4)


@given(
    st.lists(
        said_items | heard_items | st.builds(lambda p, o: said("t", **tokens(p, o)), ids, ids), max_size=6
    ),
    st.dictionaries(st.sampled_from(["score", "judge", "expected_answer", "error"]), json_values),
    st.sampled_from([None, {"reason": "max_output_tokens"}, {"reason": "content_filter"}]),
)
def test_whatever_an_answer_holds_is_written_as_it_was_read(
    output: list[Json], fields: dict[str, Json], incomplete: Json
) -> None:
    given = {**answer(*output), **fields}
    given["response"]["incomplete_details"] = incomplete
    assert result_row(recorded(given)) | {"reward": given["reward"]} == given
