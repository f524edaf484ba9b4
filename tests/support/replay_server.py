"""A server that replays the exchanges of a file of tests/replies, and takes no other request than the one laid down."""

from __future__ import annotations

import copy
import json
import math
from array import array
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.support.raw_server import WireRequest, http, wire
from windrow import Completion, Request
from windrow.policies.base import ForcedTokens, Route
from windrow.policies.chat import ChatPolicy
from windrow.records import Message

FOLDER = Path(__file__).parents[1] / "replies"


def replies(*, exact: bool = False) -> list[str]:
    """The files, by name; `exact` only those that reach `capture: tokens`."""
    found = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*.json"))
    return [name for name in found if not exact or laid_down(name)["exact"]]


def laid_down(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((FOLDER / name).read_bytes())
    return read


def exact_reply(case: dict[str, Any]) -> dict[str, Any]:
    """The reply that the ids and logprobs come from."""
    reply: dict[str, Any] = case["exchanges"][case.get("exact_in", -1)]["reply"]
    return reply


def request_of(asked: dict[str, Any], route: Route | None = None) -> Request:
    return Request(
        messages=tuple(msgspec.convert({"origin": "task", **m}, Message) for m in asked["messages"]),
        tools=tuple(asked["tools"]),
        sampling=asked["sampling"],
        capture=asked["capture"],
        top_logprobs=asked.get("top_logprobs", 0),
        forced=ForcedTokens(**asked["given"]) if "given" in asked else None,
        id="r",
        attempt=1,
        turn=0,
        route=route,
    )


class Replay:
    """Answers one exchange after another; `wrong` says how a request differs from what is laid down."""

    def __init__(self, exchanges: list[dict[str, Any]]) -> None:
        self._exchanges = exchanges
        self.told = 0
        self.wrong: list[str] = []

    def __call__(self, request: WireRequest) -> bytes:
        if self.told == len(self._exchanges):
            return self._refuse(f"one request too many: {request.path}")
        exchange = self._exchanges[self.told]
        self.told += 1
        if request.path != exchange["path"]:
            return self._refuse(f"{request.path} in the place of {exchange['path']}")
        if request.json != exchange["request"]:
            return self._refuse(f"{request.json} in the place of {exchange['request']}")
        return http(exchange.get("status", 200), exchange["reply"])

    def _refuse(self, why: str) -> bytes:
        self.wrong.append(why)
        return http(400, {"error": {"message": why}})


@asynccontextmanager
async def replaying(
    case: dict[str, Any], change: Callable[[dict[str, Any]], None] | None = None
) -> AsyncIterator[tuple[ChatPolicy, Replay]]:
    """A policy of the case's dialect before a server that replays it; `change` is done to the exact reply."""
    case = copy.deepcopy(case)
    if change is not None:
        change(exact_reply(case))
    replay = Replay(case["exchanges"])
    async with wire(replay) as server:
        policy = ChatPolicy("stub", [server.url], dialect=case["dialect"], probe=False)
        await policy.open()
        try:
            yield policy, replay
        finally:
            await policy.close()


def shown_top(top: Any) -> dict[str, Any] | None:
    """The likeliest tokens, a list a place; a logprob of −inf is null."""
    if top is None:
        return None
    k, logprobs = top["k"], array("f", b64decode(top["logprobs"])).tolist()
    finite = [None if value == -math.inf else value for value in logprobs]
    found = {**top, "logprobs": [finite[n : n + k] for n in range(0, len(finite), k)]}
    if "ids" in top:
        ids = array("i", b64decode(top["ids"])).tolist()
        found["ids"] = [ids[n : n + k] for n in range(0, len(ids), k)]
    return found


def shown(completion: Completion) -> dict[str, Any]:
    """A completion as the files spell it; what is null or empty is left out."""
    tokens, usage = completion.tokens, completion.usage
    found = {
        "content": completion.content,
        "reasoning": completion.reasoning,
        "finish": completion.finish,
        "capture": completion.capture,
        "calls": [[call.id, call.name, call.arguments] for call in completion.tool_calls],
        "usage": [usage.prompt_tokens, usage.completion_tokens] if usage else None,
        "cached": usage.cached_tokens if usage else None,
        "version": completion.version,
        "prompt": array("i", tokens.prompt_new).tolist() if tokens else None,
        "output": array("i", tokens.output).tolist() if tokens else None,
        "logprobs": array("f", tokens.logprobs or b"").tolist() if tokens else None,
        "kind": tokens.logprob_kind if tokens else None,
        "top": shown_top(tokens.top) if tokens else None,
    }
    return {name: value for name, value in found.items() if value or name == "content"}
