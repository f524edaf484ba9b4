"""What an endpoint can do, found out by asking it: a handful of short calls."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from windrow.errors import EndpointError, InfraError, PolicyError
from windrow.policies.chat import ChatPolicy
from windrow.records import Json

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at; `ok` is None where it is neither good nor bad."""

    name: str
    ok: bool | None
    detail: str


async def examine(policy: ChatPolicy) -> list[Finding]:
    """Reach the endpoint, then ask for usage, logprobs, token ids, seeds and tools. Never raises for what it finds."""
    try:
        await policy.open()
    except EndpointError as problem:
        return [Finding("endpoint", False, str(problem))]
    finally:
        started = time.monotonic()
    try:
        plain = await _ask(policy, {"temperature": 0, "max_tokens": 8})
        if isinstance(plain, str):
            return [Finding("endpoint", False, plain)]
        findings = [
            Finding(
                "endpoint",
                True,
                f"{policy.where}: {policy.model} answers in {time.monotonic() - started:.2f} s",
            )
        ]
        findings += await _server(policy)
        usage = _object(plain.get("usage"))
        findings.append(_said("usage", bool(usage.get("completion_tokens")), "token counts with the reply"))
        logprobs = await _ask(policy, {"max_tokens": 4, "logprobs": True, "top_logprobs": 1})
        findings.append(
            _said("logprobs", bool(_choice(logprobs).get("logprobs")), "logprobs of sampled tokens")
        )
        ids = await _ask(policy, {"max_tokens": 4, "return_token_ids": True})
        findings.append(_said("token ids", bool(_choice(ids).get("token_ids")), "ids of sampled tokens"))
        findings.append(await _seeds(policy))
        tools = await _ask(policy, {"max_tokens": 64, "tools": [TOOL], "tool_choice": "required"})
        calls = _object(_choice(tools).get("message")).get("tool_calls")
        findings.append(_said("tools", bool(calls), "native tool calls"))
        return findings
    finally:
        await policy.close()


async def _server(policy: ChatPolicy) -> list[Finding]:
    """What it is, and how exactly its replies can be kept."""
    policy.wanted_capture = "tokens"
    facts = await policy.facts(policy.endpoints[0])
    kind = f", logprobs {facts.logprob_kind}" if facts.logprob_kind else ""
    found = f"--capture {facts.reached or '?'} as {facts.dialect!r}{kind}"
    why = f": {facts.why}" if facts.why else ""
    return [
        Finding("server", True, facts.server),
        Finding("capture", True if facts.reached == "tokens" else None, found + why),
    ]


async def _seeds(policy: ChatPolicy) -> Finding:
    ask: dict[str, Json] = {"max_tokens": 12, "temperature": 1.0, "seed": 7}
    first, again = [_object(_choice(await _ask(policy, ask)).get("message")).get("content") for _ in range(2)]
    return _said("seeds", first == again, "same reply for the same seed")


async def _ask(policy: ChatPolicy, options: dict[str, Json]) -> dict[str, Any] | str:
    """The reply's JSON, or what went wrong."""
    body = {"model": policy.model, "messages": [{"role": "user", "content": "What is 2 + 3?"}], **options}
    try:
        status, reply = await policy.post(body)
    except (InfraError, PolicyError) as problem:
        return str(problem)
    if status != 200:
        return f"status {status}"
    try:
        decoded: dict[str, Any] = msgspec.json.decode(reply, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "the reply is not JSON"
    return decoded


def _choice(reply: dict[str, Any] | str) -> dict[str, Any]:
    choices = _object(reply).get("choices")
    return _object(choices[0]) if isinstance(choices, list) and choices else {}


def _object(value: Any) -> dict[str, Any]:
    """What a server sent in the place of an object, or an empty one."""
    return value if isinstance(value, dict) else {}


def _said(name: str, found: bool, what: str) -> Finding:
    return Finding(name, found or None, what if found else f"no {what}")
