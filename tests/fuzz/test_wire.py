"""Answers of any bytes, over real sockets: a completion comes out, or one error of ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.test_replies import WHOLE
from tests.fuzz.mutations import fuzz, mutated_bytes, mutated_json, taken_or_refused
from tests.support.raw_server import http, wired
from tests.support.replay_server import laid_down, replies, request_of, shown_top
from windrow.policies.base import Completion, Request
from windrow.policies.calls import complete
from windrow.policies.chat import ChatPolicy
from windrow.policies.doctor import examine
from windrow.records import Message

MODELS = {"object": "list", "data": [{"id": "stub", "object": "model"}, {"id": "other"}]}
ERROR = {"error": {"message": "This model's maximum context length is 10", "type": "x", "code": 400}}
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
ANSWERS = [
    http(200, WHOLE),
    http(429, ERROR, {"Retry-After": "0"}),
    http(400, ERROR, {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}),
    http(302, b"", {"Location": "http://127.0.0.1:9/"}),
    CHUNKED,
]
REQUEST = Request(
    messages=(Message(role="user", content="hi", origin="task"),),
    tools=(),
    sampling={},
    id="r",
    attempt=1,
    turn=0,
    capture="tokens",
)


class Line:
    """A server that sends what it is told, and a policy that asks it; each on a loop of its own."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.url = url

    def ask(self) -> Completion:
        return self.loop.run_until_complete(self._ask())

    def open(self) -> None:
        self.loop.run_until_complete(self._open())

    def examine(self) -> Any:
        return self.loop.run_until_complete(examine(ChatPolicy("stub", [self.url], probe_timeout_s=0.5)))

    def ask_as(self, dialect: str, request: Request) -> Completion:
        return self.loop.run_until_complete(self._ask(dialect, request))

    async def _ask(self, dialect: str = "auto", request: Request = REQUEST) -> Completion:
        policy = ChatPolicy("stub", [self.url], probe=False, dialect=dialect)
        await policy.open()
        try:
            return await complete(policy, request, retries=0, backoff_s=0, timeout_s=0.5)
        finally:
            await policy.close()

    async def _open(self) -> None:
        policy = ChatPolicy("stub", [self.url], probe_timeout_s=0.5)
        try:
            await policy.open()
        finally:
            await policy.close()


class Server:
    """What is sent for a request: by its path, else `other`."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.other = b""


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


@pytest.fixture(scope="module")
def line(server: Server) -> Iterator[Line]:
    with wired(lambda request: server.answers.get(request.path.rpartition("/")[2], server.other)) as wire:
        made = Line(wire.url)
        yield made
        made.loop.close()


@fuzz(300)
@given(body=mutated_json([WHOLE]))
def test_a_reply_of_any_json_is_a_completion_or_refused(body: bytes, line: Line, server: Server) -> None:
    server.answers, server.other = {}, http(200, body)
    found = taken_or_refused(line.ask)
    assert found is None or isinstance(found, Completion)


@fuzz(250)
@given(answer=mutated_bytes(ANSWERS))
def test_an_answer_of_any_bytes_is_a_completion_or_refused(answer: bytes, line: Line, server: Server) -> None:
    server.answers, server.other = {}, answer
    found = taken_or_refused(line.ask)
    assert found is None or isinstance(found, Completion)


@fuzz(150)
@given(listed=mutated_json([MODELS]), body=mutated_json([WHOLE, ERROR]))
def test_an_endpoint_of_any_answers_is_found_fit_or_refused(
    listed: bytes, body: bytes, line: Line, server: Server
) -> None:
    server.answers, server.other = {"models": http(200, listed)}, http(200, body)
    taken_or_refused(line.open)


@fuzz(60)
@given(body=mutated_json([WHOLE, ERROR]))
def test_doctor_says_what_it_finds_whatever_it_is(body: bytes, line: Line, server: Server) -> None:
    server.answers = {"models": http(200, json.dumps(MODELS).encode())}
    server.other = http(200, body)
    assert taken_or_refused(line.examine)


# What each server tells of likeliest tokens, and of ids that it is given.
TOLD = [name for name in replies() if name.endswith(("top.json", "scored.json"))]


@pytest.mark.parametrize("name", TOLD)
@fuzz(12)
@given(data=st.data())
def test_what_is_told_of_tokens_is_kept_whole_or_refused(
    name: str, data: st.DataObject, line: Line, server: Server
) -> None:
    case = laid_down(name)
    asked = request_of(case["ask"])
    bodies = {exchange["path"].rpartition("/")[2]: exchange["reply"] for exchange in case["exchanges"]}
    server.answers = {path: http(200, reply) for path, reply in bodies.items()}
    told = next(path for path in bodies if path not in ("tokenize", "detokenize", "apply-template"))
    server.answers[told] = http(200, data.draw(mutated_json([bodies[told]])))
    found = taken_or_refused(lambda: line.ask_as(case["dialect"], asked))
    if found is None or found.tokens is None:
        return
    count = len(found.tokens.logprobs or b"") // 4
    if asked.forced is not None:
        assert count == len(asked.forced.output)
    top = shown_top(found.tokens.top)
    if top is not None:
        assert len(top["logprobs"]) == len(top["ids" if "ids" in top else "texts"]) == count
        assert json.dumps(top["logprobs"])
