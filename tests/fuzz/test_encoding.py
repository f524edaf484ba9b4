"""Messages that are sent again: whatever an episode asks with, in every dialect the bytes are those of a first request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutations import fuzz
from tests.support.raw_server import WireServer, http, wired
from windrow.errors import PolicyError
from windrow.policies.base import Policy, Request, Route
from windrow.policies.chat import ChatPolicy
from windrow.policies.dialects import DIALECTS
from windrow.policies.toolcalls import FORMATS
from windrow.policies.toolcalls.policy import TextToolPolicy
from windrow.records import Call, Capture, Message

TOOL = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}

texts = st.sampled_from(["", "x", "é\u2028😀", 'a "quoted" line\n', "<tool_call>\n{}\n</tool_call>"])
parts = st.lists(
    st.one_of(texts.map(lambda text: {"type": "text", "text": text}), st.just(IMAGE)), min_size=1, max_size=2
)
calls = st.lists(
    st.builds(Call, id=st.sampled_from("abc"), name=st.just("look"), arguments=st.sampled_from(["{}", "no"])),
    min_size=1,
    max_size=2,
).map(tuple)
messages = st.one_of(
    st.builds(
        Message,
        role=st.sampled_from(["system", "user"]),
        content=st.one_of(texts, parts),
        origin=st.just("task"),
        name=st.sampled_from([None, "ann"]),
    ),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=st.one_of(st.none(), texts),
        origin=st.just("policy"),
        reasoning=st.sampled_from([None, "hm"]),
        tool_calls=st.one_of(st.none(), calls),
    ),
    st.builds(
        Message,
        role=st.just("tool"),
        content=texts,
        origin=st.just("tool"),
        tool_call_id=st.sampled_from("abc"),
    ),
)
# What is new since the last call, and the ranges that are asked with: each bound taken modulo what there is.
turns = st.lists(
    st.tuples(
        st.lists(messages, min_size=1, max_size=3),
        st.one_of(st.none(), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=2)),
    ),
    min_size=1,
    max_size=6,
)
Turns = list[tuple[list[Message], list[tuple[int, int]] | None]]


def asked(script: Turns) -> Iterator[tuple[Message, ...]]:
    """The messages of each call: all so far, or windows of them; every third call is tried again."""
    recorded: list[Message] = []
    for number, (new, windows) in enumerate(script):
        recorded += new
        ranges = [(start % len(recorded), start % len(recorded) + length) for start, length in windows or ()]
        shown = [message for start, stop in ranges for message in recorded[start:stop]]
        yield from [tuple(shown or recorded)] * (2 if number % 3 == 2 else 1)


@pytest.fixture(scope="module")
def refusing() -> Iterator[WireServer]:
    """Refuses every request: what comes first of a call holds its messages."""
    with wired(lambda request: http(418, {"error": {"message": "no"}})) as server:
        yield server


async def bodies(server: WireServer, policy: Policy, requests: Sequence[Request]) -> list[Any]:
    """What is sent for each request, or why nothing is."""
    sent: list[Any] = []
    await policy.open()
    try:
        for request in requests:
            server.requests.clear()
            try:
                await policy.complete(request)
            except PolicyError as problem:
                sent.append([one.body for one in server.requests] or str(problem))
    finally:
        await policy.close()
    return sent


def sent_again_as_first(server: WireServer, policy: Policy, script: Turns, capture: Capture = "text") -> None:
    route = Route()

    def request(turn: int, shown: tuple[Message, ...], route: Route | None) -> Request:
        sampling = {"max_tokens": 5, "extra": {"salt": ["x"]}}
        return Request(
            messages=shown,
            tools=(TOOL,),
            sampling=sampling,
            id="r",
            attempt=1,
            turn=turn,
            capture=capture,
            route=route,
        )

    told = list(enumerate(asked(script)))
    again = asyncio.run(bodies(server, policy, [request(*one, route) for one in told]))
    first = asyncio.run(bodies(server, policy, [request(*one, None) for one in told]))
    assert len(again) == len(told)
    assert again == first


@pytest.mark.parametrize("capture", ["text", "tokens"])
@pytest.mark.parametrize("dialect", DIALECTS)
@fuzz(25)
@given(script=turns)
def test_messages_are_sent_again_as_they_were_sent_first(
    dialect: str, capture: Capture, script: Turns, refusing: WireServer
) -> None:
    policy = ChatPolicy("stub", [refusing.url], probe=False, dialect=dialect)
    sent_again_as_first(refusing, policy, script, capture)


@pytest.mark.parametrize("form", FORMATS)
@fuzz(25)
@given(script=turns)
def test_calls_that_are_text_are_sent_again_as_they_were_sent_first(
    form: str, script: Turns, refusing: WireServer
) -> None:
    policy = ChatPolicy("stub", [refusing.url], probe=False, dialect="openai")
    sent_again_as_first(refusing, TextToolPolicy(policy, form), script)
