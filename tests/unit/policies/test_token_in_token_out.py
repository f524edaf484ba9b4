"""Token in, token out: a prompt goes on from the ids that were sampled, and where it cannot, nothing is claimed."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.raw_server import wire
from tests.support.replay_server import shown_top
from tests.support.token_server import END, LEFT_OUT, TokenServer, as_ids, as_text, forgetful
from windrow import Completion, Request
from windrow.errors import InfraError, PolicyError, UsageError
from windrow.policies.base import Route
from windrow.policies.chat import ChatPolicy
from windrow.policies.dialects import DIALECTS
from windrow.policies.toolcalls.policy import with_tool_calls
from windrow.records import Message

SAMPLED = [*as_ids("x ab", merge=False), *as_ids(END)]  # in other ids than the tokenizer's

SENDS_IDS = [name for name, dialect in DIALECTS.items() if dialect.takes_ids]


def said(completion: Completion) -> Message:
    return Message(
        role="assistant", content=completion.content, origin="policy", reasoning=completion.reasoning
    )


def user(text: str) -> Message:
    return Message(role="user", content=text, origin="task")


class Talk:
    """An episode of calls at one endpoint."""

    def __init__(self, policy: ChatPolicy) -> None:
        self._policy = policy
        self._route = Route()

    async def ask(self, *messages: Message, top: int = 0) -> Completion:
        return await self._policy.complete(
            Request(
                messages=messages,
                tools=(),
                sampling={},
                id="r",
                attempt=1,
                turn=0,
                capture="tokens",
                top_logprobs=top,
                route=self._route,
            )
        )


@asynccontextmanager
async def talking(server: TokenServer, dialect: str = "llamacpp-completion") -> AsyncIterator[Talk]:
    async with wire(server) as listening:
        policy = ChatPolicy("stub", [listening.url], dialect=dialect, probe=False)
        await policy.open()
        try:
            yield Talk(policy)
        finally:
            await policy.close()


def ids_of(completion: Completion) -> tuple[list[int], list[int]]:
    assert completion.tokens is not None
    return array("i", completion.tokens.prompt_new).tolist(), array("i", completion.tokens.output).tolist()


def logprobs_of(completion: Completion) -> list[float]:
    assert completion.tokens is not None
    return array("f", completion.tokens.logprobs or b"").tolist()


@pytest.mark.parametrize("dialect", SENDS_IDS)
async def test_the_next_prompt_is_what_was_sampled_id_for_id_and_what_the_messages_add(dialect: str) -> None:
    server = TokenServer([SAMPLED, SAMPLED, SAMPLED])
    async with talking(server, dialect) as talk:
        messages = [user("ab")]
        for turn in range(3):
            reply = await talk.ask(*messages)
            assert (reply.capture, ids_of(reply)) == ("tokens", (server.prompts[turn], SAMPLED))
            messages += [said(reply), user(f"{turn} ab")]
    first, second, third = server.prompts
    assert second == [*first, *SAMPLED, *as_ids("<s>user:0 ab<e><s>assistant:")]
    assert third == [*second, *SAMPLED, *as_ids("<s>user:1 ab<e><s>assistant:")]
    assert second != as_ids(as_text(second))  # tokenised again, it would be another prompt


@pytest.mark.parametrize("dialect", SENDS_IDS)
async def test_a_template_that_drops_old_reasoning_gives_a_new_prompt(dialect: str) -> None:
    thinking = [*as_ids("<think>so</think>x ab", merge=False), *as_ids(END)]
    server = TokenServer([thinking, SAMPLED], forgetful)
    async with talking(server, dialect) as talk:
        reply = await talk.ask(user("hi"))
        assert (reply.reasoning, reply.content) == ("so", "x ab")
        later = await talk.ask(user("hi"), said(reply), user("on"))
    assert server.prompts[1] == as_ids("<s>user:hi<e><s>assistant:x ab<e><s>user:on<e><s>assistant:")
    assert (later.capture, ids_of(later)[0]) == ("tokens", server.prompts[1])


async def test_a_template_that_keeps_reasoning_goes_on_from_it() -> None:
    thinking = [*as_ids("<think>so ab</think>x", merge=False), *as_ids(END)]
    server = TokenServer([thinking, SAMPLED])
    async with talking(server) as talk:
        reply = await talk.ask(user("hi"))
        await talk.ask(user("hi"), said(reply), user("on"))
    assert server.prompts[1][: len(server.prompts[0]) + len(thinking)] == [*server.prompts[0], *thinking]


async def test_an_edited_history_gives_a_new_prompt() -> None:
    server = TokenServer([SAMPLED, SAMPLED])
    async with talking(server) as talk:
        reply = await talk.ask(user("hi"))
        edited = Message(role="assistant", content=f"{reply.content}!", origin="policy")
        await talk.ask(user("hi"), edited, user("on"))
    assert server.prompts[1] == as_ids("<s>user:hi<e><s>assistant:x ab!<e><s>user:on<e><s>assistant:")


async def test_two_conversations_from_one_reply_both_go_on_from_it() -> None:
    server = TokenServer([SAMPLED] * 4)
    async with talking(server) as talk:
        start = user("hi")
        reply = await talk.ask(start)
        one = await talk.ask(start, said(reply), user("one"))
        await talk.ask(start, said(reply), user("two"))
        await talk.ask(start, said(reply), user("one"), said(one), user("more"))
    first, second, third, fourth = server.prompts
    so_far = [*first, *SAMPLED]
    assert second == [*so_far, *as_ids("<s>user:one<e><s>assistant:")]
    assert third == [*so_far, *as_ids("<s>user:two<e><s>assistant:")]
    assert fourth == [*second, *SAMPLED, *as_ids("<s>user:more<e><s>assistant:")]


async def test_a_logprob_that_was_left_out_is_asked_for_by_its_prefix() -> None:
    server = TokenServer([as_ids("xyz", merge=False)])
    server.leave_out = {ord("y")}
    async with talking(server) as talk:
        reply = await talk.ask(user("hi"))
    assert (reply.capture, logprobs_of(reply)) == ("tokens", [-0.5, LEFT_OUT, -0.5])
    assert {tuple(prefix) for prefix, _ in server.scored} == {(*server.prompts[0], ord("x"))}


async def test_likeliest_tokens_that_were_left_out_are_asked_for_by_their_prefix() -> None:
    server = TokenServer([as_ids("xyz", merge=False)])
    server.leave_out = {ord("y")}
    async with talking(server) as talk:
        reply = await talk.ask(user("hi"), top=2)
    assert reply.tokens is not None
    assert shown_top(reply.tokens.top) == {
        "k": 2,
        "ids": [[ord("x"), ord("y")], [4, ord("y")], [ord("z"), ord("{")]],
        "logprobs": [[-0.5, -1.5], [pytest.approx(-0.1), LEFT_OUT], [-0.5, -1.5]],
    }


async def test_logprobs_that_could_belong_to_either_of_two_ids_are_asked_for() -> None:
    """Of two y, one logprob came: nobody can say of which, so both are asked for."""
    told = [{"id": ord("x"), "logprob": -0.5}, {"id": ord("y"), "logprob": -0.25}]
    server = TokenServer([as_ids("xyy")], completion_probabilities=told)
    server.leave_out = {ord("y")}
    async with talking(server) as talk:
        reply = await talk.ask(user("hi"))
    assert logprobs_of(reply) == [-0.5, LEFT_OUT, LEFT_OUT]


@pytest.mark.parametrize(
    "changes",
    [
        {"completion_probabilities": None},
        {"completion_probabilities": [{"id": 9, "logprob": -0.5}]},
        {"tokens_evaluated": 1},
        {"truncated": True},  # the server may have dropped the beginning of the prompt
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_what_does_not_fit_is_not_said_to_be_exact(changes: dict[str, Any]) -> None:
    async with talking(TokenServer([SAMPLED], **changes)) as talk:
        reply = await talk.ask(user("hi"))
    assert reply.capture in ("text", "logprobs")


@pytest.mark.parametrize(
    "changes", [{"tokens": None}, {"tokens": []}, {"tokens_predicted": 2}, {"content": 1}]
)
async def test_a_reply_without_its_ids_is_an_error(changes: dict[str, Any]) -> None:
    async with talking(TokenServer([SAMPLED], **changes)) as talk:
        with pytest.raises(PolicyError) as refusal:
            await talk.ask(user("hi"))
    assert refusal.value.kind == "bad_reply"


async def test_a_logprob_that_vllm_does_not_have_makes_the_reply_inexact() -> None:
    logprobs = {"token_logprobs": [-0.5, None, *[-0.5] * (len(SAMPLED) - 2)]}
    async with talking(TokenServer([SAMPLED], logprobs=logprobs), "vllm-completions") as talk:
        reply = await talk.ask(user("hi"))
    assert (reply.capture, reply.tokens) == ("text", None)


@pytest.mark.parametrize(
    ("dialect", "changes"),
    [
        ("vllm-completions", {"finish_reason": "abort"}),
        ("vllm-generate", {"finish_reason": "abort"}),
        ("sglang-generate", {"finish_reason": {"type": "abort", "message": "out of memory"}}),
    ],
)
async def test_a_call_that_the_server_gave_up_may_be_tried_again(
    dialect: str, changes: dict[str, Any]
) -> None:
    async with talking(TokenServer([SAMPLED], **changes), dialect) as talk:
        with pytest.raises(InfraError, match="gave the call up") as refusal:
            await talk.ask(user("hi"))
    assert (refusal.value.kind, refusal.value.again) == ("aborted", True)


@pytest.mark.parametrize("dialect", SENDS_IDS)
def test_native_tool_calls_are_not_asked_of_a_server_that_gives_text(dialect: str) -> None:
    policy = ChatPolicy("stub", ["http://127.0.0.1:9/v1"], dialect=dialect)
    with pytest.raises(UsageError, match="gives text alone"):
        with_tool_calls(policy, "native")
    assert with_tool_calls(policy, "auto").identity()["tool_calls"]["format"] == "hermes"
