"""Dialects: what each server is sent, what its reply becomes, and that a reply that lacks something never says `tokens`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.collect_helpers import single
from tests.support.replay_server import exact_reply, laid_down, replaying, replies, request_of, shown
from windrow.config import DialectName
from windrow.errors import PolicyError
from windrow.policies.dialects import AUTO, DIALECTS

Change = Callable[[Any, Any], None]  # of what holds a field, and the field's name or position


def removed(holder: Any, key: Any) -> None:
    del holder[key]


def nulled(holder: Any, key: Any) -> None:
    holder[key] = None


def renamed(holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder[f"{key}_v2"] = holder.pop(key)
    else:
        holder[key] = {"v2": holder[key]}


def shortened(holder: Any, key: Any) -> None:
    value = holder[key]
    holder[key] = value[:-1] if isinstance(value, list) else value - 1 if isinstance(value, int) else None


def emptied(holder: Any, key: Any) -> None:
    holder[key] = [] if isinstance(holder[key], list) else {} if isinstance(holder[key], dict) else 0


def of_another_kind(holder: Any, key: Any) -> None:
    holder[key] = "none"


CHANGES = (removed, nulled, renamed, shortened, emptied, of_another_kind)


def test_every_dialect_can_be_configured_and_has_a_reply_laid_down() -> None:
    assert set(get_args(DialectName)) == {AUTO, *DIALECTS}
    assert {name.partition("/")[0] for name in replies()} | {"llamacpp-completion"} == set(DIALECTS)


@pytest.mark.parametrize("name", replies())
async def test_a_call_is_sent_and_read_as_laid_down(name: str) -> None:
    case = laid_down(name)
    async with replaying(case) as (policy, replay):
        try:
            completion = await policy.complete(request_of(case["ask"]))
        finally:
            assert replay.wrong == []
    assert replay.told == len(case["exchanges"])
    assert shown(completion) == case["completion"]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name in replies(exact=True) for field in laid_down(name)["exact"]]
)
async def test_a_reply_that_lacks_something_never_says_tokens(name: str, field: str, change: Change) -> None:
    *path, last = [int(part) if part.isdigit() else part for part in field.split(".")]

    def break_it(reply: dict[str, Any]) -> None:
        holder: Any = reply
        for part in path:
            holder = holder[part]
        change(holder, last)

    case = laid_down(name)
    unbroken = exact_reply(laid_down(name))
    async with replaying(case, break_it) as (policy, _):
        try:
            completion = await policy.complete(request_of(case["ask"]))
        except PolicyError as problem:
            refused: PolicyError | None = problem
        else:
            refused = None
            assert completion.capture in ("text", "logprobs")
            assert not shown(completion).get("output")
    assert refused is None or (refused.kind, refused.owner) == ("bad_reply", "policy")
    assert exact_reply(case) == unbroken


async def test_a_placeholder_is_no_logprob() -> None:
    def missing(reply: dict[str, Any]) -> None:
        reply["choices"][0]["logprobs"]["content"][1]["logprob"] = -9999.0

    case = laid_down("vllm/tokens.json")
    async with replaying(case, missing) as (policy, _):
        completion = await policy.complete(request_of(case["ask"]))
    assert (completion.capture, completion.tokens) == ("text", None)


async def test_logprobs_of_other_ids_are_not_taken_for_those_of_the_reply() -> None:
    def of_another(reply: dict[str, Any]) -> None:
        reply["meta_info"]["output_token_logprobs"][1][1] = 18

    case = laid_down("sglang-generate/tokens.json")
    async with replaying(case, of_another) as (policy, _):
        completion = await policy.complete(request_of(case["ask"]))
    assert completion.capture == "text"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("anthropic/tool_use.json", "content"),
        ("anthropic/tool_use.json", "stop_reason"),
        ("anthropic/tool_use.json", "content.2.id"),
        ("anthropic/tool_use.json", "content.2.input"),
        ("responses/function_call.json", "status"),
        ("responses/function_call.json", "output"),
        ("responses/function_call.json", "output.2.call_id"),
        ("responses/function_call.json", "output.2.arguments"),
    ],
)
async def test_a_reply_of_text_that_lacks_something_is_an_error(name: str, field: str) -> None:
    *path, last = [int(part) if part.isdigit() else part for part in field.split(".")]

    def break_it(reply: dict[str, Any]) -> None:
        holder: Any = reply
        for part in path:
            holder = holder[part]
        removed(holder, last)

    case = laid_down(name)
    async with replaying(case, break_it) as (policy, _):
        with pytest.raises(PolicyError) as refusal:
            await policy.complete(request_of(case["ask"]))
    assert refusal.value.kind == "bad_reply"


async def test_a_response_that_failed_says_why() -> None:
    def failed(reply: dict[str, Any]) -> None:
        reply |= {"status": "failed", "error": {"code": "server_error", "message": "out of luck"}}

    case = laid_down("responses/length.json")
    async with replaying(case, failed) as (policy, _):
        with pytest.raises(PolicyError, match="out of luck"):
            await policy.complete(request_of(case["ask"]))


async def test_an_anthropic_key_is_sent_as_such(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-key-of-the-test")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-company")
    seen: list[dict[str, str]] = []

    def reply(request: web.Request) -> web.Response:
        seen.append(dict(request.headers))
        if request.path.endswith("/models"):
            return web.json_response({"data": [{"id": "stub"}]})
        return web.json_response({"content": [{"type": "text", "text": "4"}], "stop_reason": "end_turn"})

    async def handle(request: web.Request) -> web.Response:
        return reply(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app) as server:
        url = str(server.make_url("/v1"))
        task = [{"prompt": "2 + 2?", "answer": "4"}]
        rollout = await single(
            task, model="stub", base_url=url, dialect="anthropic", out=str(tmp_path / "run")
        )
    assert rollout.reward == 1.0
    assert len(seen) == 2
    for headers in seen:
        assert headers["x-api-key"] == "sk-ant-key-of-the-test"
        assert headers["anthropic-version"] == "2023-06-01"
        assert "Authorization" not in headers


async def test_what_is_no_text_is_not_left_out_in_silence() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    case = laid_down("anthropic/length.json")
    asked = {**case["ask"], "messages": [{"role": "user", "content": [sound]}]}
    async with replaying(case) as (policy, replay):
        with pytest.raises(PolicyError, match="input_audio"):
            await policy.complete(request_of(asked))
    assert replay.told == 0
