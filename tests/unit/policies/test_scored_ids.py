"""Ids that are given are scored, not sampled: each has its logprob, or the call fails and says why."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.raw_server import WireRequest, http, wire
from tests.support.replay_server import laid_down, replaying, request_of, shown_top
from tests.support.token_server import END, LEFT_OUT, TokenServer, as_ids, given_logprob
from windrow import Completion, Request
from windrow.errors import InfraError, PolicyError
from windrow.policies.base import ForcedTokens
from windrow.policies.chat import ChatPolicy

PROMPT = as_ids("<s>user:hi<e><s>assistant:")
OUTPUT = [*as_ids("x ab", merge=False), *as_ids(END)]
PLACES = [given_logprob(len(PROMPT) + n) for n in range(len(OUTPUT))]


def asked(output: list[int] = OUTPUT, text: str | None = "x ab", top: int = 0) -> Request:
    return Request(
        messages=(),
        tools=(),
        sampling={},
        id="r",
        attempt=1,
        turn=0,
        capture="tokens",
        top_logprobs=top,
        forced=ForcedTokens(PROMPT, output, text),
    )


@asynccontextmanager
async def teacher(handler: Any, dialect: str = "llamacpp-completion") -> AsyncIterator[ChatPolicy]:
    async with wire(handler) as listening:
        policy = ChatPolicy("stub", [listening.url], dialect=dialect, probe=False, max_outage_s=0)
        await policy.open()
        try:
            yield policy
        finally:
            await policy.close()


def logprobs(completion: Completion) -> list[float]:
    assert completion.tokens is not None
    return array("f", completion.tokens.logprobs or b"").tolist()


async def test_llamacpp_is_made_to_sample_them_in_one_call_and_the_last_in_another() -> None:
    server = TokenServer([])
    async with teacher(server) as policy:
        completion = await policy.complete(asked())
    assert logprobs(completion) == PLACES
    assert [len(body["prompt"]) for body in server.forced] == [len(PROMPT), len(PROMPT) + len(OUTPUT) - 1]
    assert server.forced[0]["grammar"] == "root ::= " + " ".join(f"<[{number}]>" for number in OUTPUT[:-1])
    assert server.forced[1]["logit_bias"] == [[OUTPUT[-1], 1000.0]]
    assert completion.usage is not None
    assert completion.usage.completion_tokens == len(OUTPUT)


@pytest.mark.parametrize("status", [200, 400], ids=["a grammar that stops at an id", "no such grammars"])
async def test_what_no_grammar_takes_is_asked_for_alone(status: int) -> None:
    server = TokenServer([])
    server.refuse, server.grammar_status = {ord("a")}, status
    async with teacher(server) as policy:
        assert logprobs(await policy.complete(asked())) == PLACES
    assert any(body.get("logit_bias") == [[ord("a"), 1000.0]] for body in server.forced)


@pytest.mark.parametrize("top", [0, 2])
async def test_a_part_of_a_character_is_looked_for_among_all_tokens(top: int) -> None:
    server = TokenServer([])
    server.leave_out = {ord("a")}
    async with teacher(server) as policy:
        found = logprobs(await policy.complete(asked(top=top)))
    assert found == [
        LEFT_OUT if number == ord("a") else place for number, place in zip(OUTPUT, PLACES, strict=True)
    ]


async def test_the_teachers_likeliest_are_told_where_they_are_wanted() -> None:
    async with teacher(TokenServer([])) as policy:
        completion = await policy.complete(asked(top=2))
    assert completion.tokens is not None
    top = shown_top(completion.tokens.top)
    assert top is not None
    assert top["ids"] == [[number, number + 1] for number in OUTPUT]


@pytest.mark.parametrize("dialect", ["llamacpp-completion", "llamacpp"])
async def test_ids_that_say_something_else_are_of_another_vocabulary(dialect: str) -> None:
    async with teacher(TokenServer([]), dialect) as policy:
        with pytest.raises(PolicyError, match="another vocabulary") as refusal:
            await policy.complete(asked(text="y ab"))
    assert refusal.value.kind == "other_vocabulary"


async def test_an_id_beyond_the_vocabulary_is_told_by_its_number() -> None:
    async with teacher(TokenServer([])) as policy:
        with pytest.raises(PolicyError, match="does not know the id 2000000") as refusal:
            await policy.complete(asked([2_000_000], None))
    assert refusal.value.kind == "other_vocabulary"


def without(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(reply: dict[str, Any]) -> None:
        holder: Any = reply
        for part in path[:-1]:
            holder = holder[part]
        holder[path[-1]] = None

    return change


def other_id(reply: dict[str, Any]) -> None:
    reply["meta_info"]["input_token_logprobs"][2][1] = 0


def placeholder(reply: dict[str, Any]) -> None:
    reply["choices"][0]["prompt_logprobs"][-1]["151645"]["logprob"] = -9999.0


def fewer(reply: dict[str, Any]) -> None:
    reply["choices"][0]["prompt_logprobs"].pop(0)


def another(reply: dict[str, Any]) -> None:
    reply["choices"][0]["prompt_logprobs"][-1].pop("151645")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("vllm-completions", without("choices", 0, "prompt_logprobs")),
        ("vllm-completions", without("choices", 0, "prompt_logprobs", -1)),
        ("vllm-completions", placeholder),
        ("vllm-completions", fewer),
        ("vllm-completions", another),
        ("sglang-generate", without("meta_info", "input_token_logprobs")),
        ("sglang-generate", without("meta_info", "input_token_logprobs", -1, 0)),
        ("sglang-generate", other_id),
    ],
)
async def test_a_reply_that_lacks_a_logprob_is_an_error(name: str, change: Callable[[Any], None]) -> None:
    case = laid_down(f"{name}/scored.json") | {"exact_in": 0}
    async with replaying(case, change) as (policy, _):
        with pytest.raises(PolicyError) as refusal:
            await policy.complete(request_of(case["ask"]))
    assert refusal.value.kind == "bad_reply"


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic"])
async def test_a_server_that_scores_no_ids_is_refused(dialect: str) -> None:
    async with teacher(lambda request: http(500), dialect) as policy:
        assert not policy.scores_ids
        with pytest.raises(PolicyError, match="how likely given ids are") as refusal:
            await policy.complete(asked())
    assert refusal.value.kind == "no_scoring"


async def test_a_server_that_is_not_named_is_asked_once_what_it_is() -> None:
    server = TokenServer([])
    looked: list[str] = []

    def handle(request: WireRequest) -> bytes:
        if request.method == "GET":
            looked.append(request.path)
        return server(request) if request.path != "/version" else http(404)

    async with teacher(handle, "auto") as policy:
        for _ in range(2):
            assert logprobs(await policy.complete(asked())) == PLACES
    assert looked.count("/props") == 1


async def test_a_server_that_says_nothing_of_itself_is_refused() -> None:
    async with teacher(lambda request: http(404), "auto") as policy:
        with pytest.raises(PolicyError, match="how likely given ids are"):
            await policy.complete(asked())


async def test_a_server_that_is_down_may_be_asked_again() -> None:
    def handle(request: WireRequest) -> bytes:
        return http(503, {"error": "later"})

    async with teacher(handle) as policy, asyncio.timeout(10):
        with pytest.raises(InfraError):
            await policy.complete(asked())


def test_a_policy_that_reads_the_forced_ids_by_their_former_name_finds_them() -> None:
    request = asked()
    assert request.given is request.forced is not None
