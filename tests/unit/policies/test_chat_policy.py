"""The `chat` policy over real HTTP: what is sent, what is tried again, what is made of every kind of reply."""

from __future__ import annotations

import asyncio
import email.utils
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.collect_helpers import collected, single
from tests.support.fake_clock import LIMIT_S, time_passes
from tests.support.model_server import chat_reply
from tests.support.raw_server import Deed, WireRequest, completion, http, serving, wire
from windrow.policies.calls import complete
from windrow.policies.chat import ChatPolicy
from windrow.policies.endpoint import PING

TASK = [{"prompt": "2 + 2?", "answer": "4"}]


@pytest.fixture(autouse=True)
def no_key(monkeypatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def kept_open(answer: bytes) -> bytes:
    return answer.replace(b"Connection: close\r\n", b"")


async def close(writer: asyncio.StreamWriter) -> None:
    """Without a word."""
    writer.close()


def chat(server: Any, tmp_path: Path, **options: Any) -> dict[str, Any]:
    return {"model": "stub", "base_url": server.url, "out": str(tmp_path / "run"), **options}


# -- what is sent

SAMPLING: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.05,
    "max_tokens": 64,
    "stop": ["\n\n", "END"],
    "presence_penalty": 0.1,
    "frequency_penalty": -0.2,
    "repetition_penalty": 1.1,
    "logit_bias": {"42": -100.0},
    "reasoning_effort": "low",
}


async def test_every_sampling_option_is_sent_and_extra_is_merged_into_the_body(stub, tmp_path) -> None:
    server = stub("4")
    row = {**TASK[0], "sampling": {**SAMPLING, "extra": {"guided_regex": r"\d+", "cache": {"salt": "s"}}}}
    rollout = await single([row], **chat(server, tmp_path))
    assert rollout.reward == 1.0
    assert server.bodies == [
        {
            "model": "stub",
            "messages": [{"role": "user", "content": "2 + 2?"}],
            **SAMPLING,
            "guided_regex": r"\d+",
            "cache": {"salt": "s"},
        }
    ]


async def test_nothing_is_sent_that_was_not_asked_for(stub, tmp_path) -> None:
    server = stub("4")
    await single(TASK, **chat(server, tmp_path))
    assert server.bodies == [{"model": "stub", "messages": [{"role": "user", "content": "2 + 2?"}]}]


async def test_a_flag_wins_over_the_row_and_the_row_over_the_configuration(stub, tmp_path) -> None:
    server = stub("4")
    config = tmp_path / "run.yaml"
    config.write_text("policy:\n  sampling: {temperature: 0.1, top_p: 0.1, max_tokens: 1}\n")
    row = {**TASK[0], "sampling": {"temperature": 0.2, "top_p": 0.2}}
    rollout = await single([row], **chat(server, tmp_path, config=config, temperature=0.3))
    sent = {"temperature": 0.3, "top_p": 0.2, "max_tokens": 1}
    assert {key: server.bodies[0].get(key) for key in sent} == sent
    assert rollout.policy.sampling == sent


async def test_seeds_none_sends_no_seed(stub, tmp_path) -> None:
    server = stub("4")
    await collected(TASK, **chat(server, tmp_path, samples=2, seeds="none"))
    assert [("seed" in body) for body in server.bodies] == [False, False]


async def test_seeds_sample_sends_the_sample_index(stub, tmp_path) -> None:
    server = stub("4")
    rollouts = await collected(TASK, **chat(server, tmp_path, samples=3, seeds="sample"))
    assert sorted(body["seed"] for body in server.bodies) == [0, 1, 2]
    assert all(rollout.turns[0].sampling == {"seed": rollout.sample} for rollout in rollouts)


async def test_seeds_id_sends_the_seed_of_each_attempt(stub, tmp_path) -> None:
    server = stub("4")
    rollouts = await collected(TASK, **chat(server, tmp_path, samples=3, seeds="id"))
    seeds = [rollout.seed for rollout in rollouts]
    assert sorted(body["seed"] for body in server.bodies) == sorted(seeds)
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**31 for seed in seeds)


async def test_the_key_goes_into_the_header_and_nowhere_else(stub, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-very-secret-key")
    server = stub(lambda body, n: f"4 {body!r} sk-very-secret-key", api_key="sk-very-secret-key")
    await single(TASK, **chat(server, tmp_path, api_key_env="SOME_KEY"))
    assert server.headers[0]["Authorization"] == "Bearer sk-very-secret-key"
    for file in (tmp_path / "run").rglob("*"):
        assert file.is_dir() or b"very-secret" not in file.read_bytes()


# -- what is tried again


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_a_transient_status_is_tried_again_and_counted(stub, tmp_path, status) -> None:
    server = stub(lambda body, n: (status, {}, {"error": {"message": "later"}}) if n < 2 else "4")
    rollout = await single(TASK, **chat(server, tmp_path))
    assert (rollout.status, rollout.reward, rollout.turns[0].retries) == ("completed", 1.0, 2)
    assert server.completions == 3


async def test_a_closed_connection_is_tried_again(tmp_path) -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"
    doors = iter([half, half, http(200, completion("4"))])
    async with wire(
        lambda r: http(200, {"data": [{"id": "stub"}]}) if r.method == "GET" else next(doors)
    ) as s:
        rollout = await single(TASK, **chat(s, tmp_path))
        assert (rollout.status, rollout.reward, rollout.turns[0].retries) == ("completed", 1.0, 2)
        assert s.count("/chat/completions") == 3


MODELS = kept_open(http(200, {"data": [{"id": "stub"}]}))
FOUR = kept_open(http(200, completion("4")))


async def test_a_call_into_a_connection_that_is_closed_is_sent_again_at_once_and_counted(tmp_path) -> None:
    """The server may have closed it before the call came: it uses up no retry. It may have not: it is counted."""
    closing = iter([True])

    def answer(request: WireRequest) -> bytes | Deed:
        if request.method == "GET":
            return MODELS
        return close if next(closing, False) else FOUR

    async with wire(answer, keep_alive=True) as s:
        rollout = await single(TASK, **chat(s, tmp_path, call_retries=0))
        assert (rollout.status, rollout.reward, rollout.turns[0].retries) == ("completed", 1.0, 1)
        assert s.count("/chat/completions") == 2
        assert s.connections == 2  # the one that the server's models were listed on, and a new one


async def test_a_call_that_is_sent_again_does_not_go_into_another_connection_that_may_be_closed(
    tmp_path,
) -> None:
    """After the first two rollouts, two connections are idle; the server closes each at its second call."""
    together, used = asyncio.Event(), Counter[asyncio.StreamWriter]()

    async def answer(writer: asyncio.StreamWriter) -> None:
        used[writer] += 1
        if len(used) == 2:
            together.set()
        await together.wait()
        if used[writer] == 1:
            writer.write(FOUR)
        else:
            writer.close()

    async with wire(lambda request: answer, keep_alive=True) as s:
        policy = ChatPolicy("stub", [s.url], probe=False)
        await policy.open()
        request = msgspec.structs.replace(PING, new_connection=False)
        call = partial(complete, policy, request, retries=0, backoff_s=0.0, timeout_s=LIMIT_S)
        assert [found.retries for found in await asyncio.gather(call(), call())] == [0, 0]
        assert (await call()).retries == 1
        await policy.close()


@pytest.mark.parametrize(("retries", "status"), [(0, "failed"), (1, "completed")])
async def test_a_new_connection_that_is_closed_without_a_word_is_tried_again_as_any_failure_is(
    tmp_path, retries, status
) -> None:
    closing = iter([True])

    def answer(request: WireRequest) -> bytes | Deed:
        if request.method == "GET":
            return http(200, {"data": [{"id": "stub"}]})  # and closes
        return close if next(closing, False) else FOUR

    async with wire(answer) as s:
        rollout = await single(TASK, **chat(s, tmp_path, call_retries=retries))
        assert (rollout.status, rollout.turns[0].retries) == (status, retries)
        assert s.count("/chat/completions") == retries + 1


async def test_a_server_that_takes_calls_and_closes_gets_each_call_once_more_and_no_oftener(tmp_path) -> None:
    async with wire(lambda r: MODELS if r.method == "GET" else close, keep_alive=True) as s:
        rollout = await single(TASK, **chat(s, tmp_path, call_retries=0))
        assert rollout.error is not None
        assert (rollout.status, rollout.error.kind, rollout.turns[0].retries) == ("failed", "transport", 1)
        assert s.count("/chat/completions") == 2


@pytest.mark.parametrize(
    ("said", "status", "stop"),
    [("no such thing", "failed", "error"), ("prompt is too long", "truncated", "context_overflow")],
)
async def test_a_call_that_is_refused_after_retries_counts_them(stub, tmp_path, said, status, stop) -> None:
    server = stub(lambda body, n: (500, {}, "later") if n < 2 else (400, {}, said))
    rollout = await single(TASK, **chat(server, tmp_path))
    assert (rollout.status, rollout.stop) == (status, stop)
    assert rollout.turns[0].retries == 2 == server.completions - 1


async def test_call_retries_are_bounded_and_the_failure_is_infrastructures(stub, tmp_path) -> None:
    server = stub(lambda body, n: (503, {}, {"error": {"message": "overloaded"}}))
    rollout = await single(TASK, **chat(server, tmp_path, call_retries=3))
    assert server.completions == 4
    assert (rollout.status, rollout.stop, rollout.reward, rollout.grade) == ("failed", "error", None, "none")
    assert rollout.error is not None
    assert (rollout.error.owner, rollout.error.kind, rollout.error.retryable) == ("infra", "http_503", True)
    assert "overloaded" in rollout.error.message
    assert rollout.turns[0].retries == 3
    assert rollout.turns[0].writes is None


async def test_a_failed_attempt_is_run_again_within_the_call(stub, tmp_path) -> None:
    server = stub(lambda body, n: (503, {}, {"error": {"message": "overloaded"}}) if n < 2 else "4")
    rollouts = await collected(TASK, **chat(server, tmp_path, call_retries=1, retries=1))
    assert [(r.attempt, r.status) for r in sorted(rollouts, key=lambda r: r.attempt)] == [
        (1, "failed"),
        (2, "completed"),
    ]
    assert server.completions == 3


@pytest.mark.parametrize("asked_s", [0.3, 0.6])
async def test_retry_after_in_seconds_is_waited_for(stub, tmp_path, asked_s) -> None:
    came: list[float] = []

    def reply(body: dict[str, Any], n: int) -> Any:
        came.append(time.monotonic())
        return (429, {"Retry-After": str(asked_s)}, {"error": {"message": "slow down"}}) if n == 0 else "4"

    rollout = await single(TASK, **chat(stub(reply), tmp_path))
    assert rollout.reward == 1.0
    assert came[1] - came[0] >= asked_s


@pytest.mark.slow
async def test_retry_after_as_a_date_is_waited_for(stub, tmp_path) -> None:
    until, came = 0.0, 0.0

    def reply(body: dict[str, Any], n: int) -> Any:
        nonlocal until, came
        if n == 0:
            until = float(int(time.time() + 1.5))
            date = email.utils.formatdate(until, usegmt=True)
            return 503, {"Retry-After": date}, {"error": {"message": "slow down"}}
        came = time.time()
        return "4"

    rollout = await single(TASK, **chat(stub(reply), tmp_path))
    assert rollout.reward == 1.0
    assert 0 < until <= came


@pytest.mark.parametrize("value", ["soon", "-5", "nan", "Thu, 99 Foo 2020 00:00:00 GMT", ""])
async def test_a_retry_after_that_says_nothing_does_not_stop_the_retry(stub, tmp_path, value) -> None:
    server = stub(
        lambda body, n: (429, {"Retry-After": value}, {"error": {"message": "x"}}) if n == 0 else "4"
    )
    rollout = await single(TASK, **chat(server, tmp_path))
    assert (rollout.status, server.completions) == ("completed", 2)


@pytest.mark.parametrize("status", [400, 402, 405, 413, 422, 418, 302])
async def test_another_status_is_final_for_that_sample_alone(stub, tmp_path, status) -> None:
    def reply(body: dict[str, Any], n: int) -> Any:
        wrong = body["messages"][0]["content"] == "bad"
        return (status, {}, {"error": {"message": "no such thing"}}) if wrong else "4"

    server = stub(reply)
    rows = [{"prompt": "bad", "answer": "4"}, *TASK]
    rollouts = {r.task["prompt"]: r for r in await collected(rows, **chat(server, tmp_path))}
    assert rollouts["2 + 2?"].reward == 1.0
    bad = rollouts["bad"]
    assert bad.error is not None
    assert (bad.status, bad.reward, bad.error.owner, bad.error.kind, bad.error.retryable) == (
        "failed",
        None,
        "policy",
        f"http_{status}",
        False,
    )
    assert sum(body["messages"][0]["content"] == "bad" for body in server.bodies) == 1


async def test_a_call_that_takes_too_long_is_not_repeated_and_is_infrastructures(tmp_path) -> None:
    models = http(200, {"data": [{"id": "stub"}]})
    async with wire(lambda request: models if request.method == "GET" else time_passes()) as server:
        rollout = await single(TASK, **chat(server, tmp_path, call_timeout=LIMIT_S, call_retries=5))
        assert server.count("/chat/completions") == 1
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner, rollout.error.kind) == ("failed", "infra", "call_timeout")
    assert rollout.error.retryable


# -- what a reply may be

BAD_REPLIES = {
    "html": b"<html><body>Bad gateway</body></html>",
    "empty": b"",
    "text": b"Internal error",
    "no choices": b'{"choices": []}',
    "choices missing": b'{"object": "chat.completion"}',
    "choices null": b'{"choices": null}',
    "not an object": b'["choices"]',
    "null": b"null",
    "message missing": b'{"choices": [{"finish_reason": "stop"}]}',
    "content of a wrong type": b'{"choices": [{"message": {"content": 42}}]}',
    "tool calls of a wrong type": b'{"choices": [{"message": {"content": "4", "tool_calls": "x"}}]}',
    "usage of a wrong type": b'{"choices": [{"message": {"content": "4"}}], "usage": {"prompt_tokens": "3"}}',
    "cut off": b'{"choices": [{"message": {"content": "4',
    "not UTF-8": b'{"choices": [{"message": {"content": "\xff\xfe"}}]}',
    "trailing": b'{"choices": [{"message": {"content": "4"}}]} {"again": 1}',
    "deep": b'{"choices": ' + b"[" * 50_000,
    "deep half pair": b'{"x": "\\ud83d", "choices": ' + b"[" * 50_000,
}


@pytest.mark.parametrize("body", BAD_REPLIES.values(), ids=BAD_REPLIES)
async def test_an_undecodable_reply_is_the_policys_failure_and_is_not_sent_again(tmp_path, body) -> None:
    async with wire(serving(http(200, body))) as server:
        rollout = await single(TASK, **chat(server, tmp_path))
        assert server.count("/chat/completions") == 1
    assert rollout.error is not None
    assert (rollout.status, rollout.stop, rollout.reward) == ("failed", "error", None)
    assert (rollout.error.owner, rollout.error.kind, rollout.error.phase) == ("policy", "bad_reply", "policy")
    assert rollout.error.traceback is None
    assert rollout.messages[-1].origin == "task"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."),
        (400, "context_length_exceeded"),
        (422, "the prompt is too long"),
        (413, "input exceeds the context window"),
    ],
)
async def test_a_prompt_that_does_not_fit_truncates_the_episode(stub, tmp_path, status, message) -> None:
    server = stub(lambda body, n: (status, {}, {"error": {"message": message}}))
    rollout = await single(TASK, **chat(server, tmp_path))
    assert (rollout.status, rollout.stop, rollout.error) == ("truncated", "context_overflow", None)
    assert (rollout.grade, rollout.reward) == ("graded", 0.0)
    assert server.completions == 1


async def test_half_a_surrogate_pair_is_replaced_and_counted(tmp_path) -> None:
    body = b'{"choices": [{"message": {"content": "4 \\ud83d", "reasoning": "\\ude00 hm"}}]}'
    async with wire(serving(http(200, body))) as server:
        rollout = await single(TASK, **chat(server, tmp_path))
    assert rollout.messages[-1].content == "4 \ufffd"
    assert rollout.messages[-1].reasoning == "\ufffd hm"
    assert rollout.metrics["repaired_strings"] == 2.0
    assert rollout.reward == 1.0


async def test_half_a_surrogate_pair_in_a_tool_call_does_not_stop_the_run(tmp_path) -> None:
    call = b'{"id": "c\\ud83d", "function": {"name": "f\\ud83d", "arguments": "{\\"x\\": \\"\\ud83d\\"}"}}'
    body = b'{"choices": [{"message": {"content": "4", "tool_calls": [' + call + b']}}], "model": "m\\ud83d"}'
    async with wire(serving(http(200, body))) as server:
        rollout = await single(TASK, **chat(server, tmp_path))
    assert rollout.status == "completed"
    [found] = rollout.messages[1].tool_calls or ()
    assert (found.id, found.name, found.arguments) == ("c\ufffd", "f\ufffd", '{"x": "\ufffd"}')
    assert rollout.metrics["repaired_strings"] >= 3.0


async def test_a_whole_emoji_stays_as_it_is(tmp_path) -> None:
    body = b'{"choices": [{"message": {"content": "4 \\ud83d\\ude00"}}]}'
    async with wire(serving(http(200, body))) as server:
        rollout = await single(TASK, **chat(server, tmp_path))
    assert rollout.messages[-1].content == "4 \U0001f600"
    assert "repaired_strings" not in rollout.metrics


async def test_tool_calls_are_kept_as_the_policy_wrote_them(tmp_path) -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x":  1}'}},
        {"function": {"name": "now", "arguments": {"zone": "UTC"}}},
        {"id": "c", "function": {"name": "broken", "arguments": "{x:"}},
    ]
    async with wire(
        serving(http(200, completion(None, tool_calls=calls, finish_reason="tool_calls")))
    ) as server:
        rollout = await single(TASK, **chat(server, tmp_path))
    said = rollout.messages[1]
    assert said.content is None
    assert [(c.id, c.name, c.arguments) for c in said.tool_calls or ()] == [
        ("a", "add", '{"x":  1}'),
        ("call_1", "now", '{"zone":"UTC"}'),
        ("c", "broken", "{x:"),
    ]
    assert rollout.turns[0].finish == "tool_calls"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_is_kept_apart_from_the_answer(tmp_path, field) -> None:
    async with wire(serving(http(200, completion("4", **{field: "two and two"})))) as server:
        rollout = await single(TASK, **chat(server, tmp_path))
    assert (rollout.messages[-1].content, rollout.messages[-1].reasoning) == ("4", "two and two")


async def test_a_refusal_is_the_reply(tmp_path) -> None:
    async with wire(serving(http(200, completion(None, refusal="I will not")))) as server:
        rollout = await single(TASK, **chat(server, tmp_path))
    assert (rollout.status, rollout.reply, rollout.reward) == ("completed", "I will not", 0.0)


async def test_content_in_parts_is_joined_and_usage_is_recorded(tmp_path) -> None:
    reply = completion(None)
    reply["choices"][0]["message"]["content"] = [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]
    reply["usage"] = {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    reply["model"] = "stub-0613"
    async with wire(serving(http(200, reply))) as server:
        rollout = await single(TASK, **chat(server, tmp_path))
    usage = rollout.usage
    assert (rollout.reply, rollout.turns[0].model) == ("42", "stub-0613")
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (9, 2, 8)


async def test_messages_go_out_as_they_stand_in_the_row(stub, tmp_path) -> None:
    server = stub(lambda body, n: chat_reply(body, "4", n))
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}], "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
    ]
    await single([{"messages": messages, "answer": "4"}], **chat(server, tmp_path))
    assert server.bodies[0]["messages"] == messages
