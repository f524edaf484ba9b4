"""What an endpoint can do, found out with a handful of short calls: `windrow doctor`."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from windrow.errors import EndpointError, InfraError, PolicyError
from windrow.policies.base import PolicyNeeds
from windrow.policies.capture import asks
from windrow.policies.chat import ChatPolicy
from windrow.policies.dialects import DIALECTS, scoring
from windrow.policies.probe import identify
from windrow.records import Json

TOP = 2  # likeliest tokens are asked for, to see whether they come
TIMEOUT_S = 20.0  # for the server to say what it is
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
    """The result of one check; `ok` is None where it is neither good nor bad."""

    name: str
    ok: bool | None
    detail: str


async def examine(policy: ChatPolicy) -> list[Finding]:
    """Reach the endpoint, then ask for usage, logprobs, token ids, seeds and tools. Never raises for what it finds."""
    try:
        try:
            await policy.open()
        except EndpointError as problem:
            return [Finding("endpoint", False, str(problem))]
        started = time.monotonic()
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
        server, dialect = await identify(policy.endpoints[0], TIMEOUT_S)
        findings.append(Finding("server", True, server))
        usage = _object(plain.get("usage"))
        findings.append(
            _finding("usage", bool(usage.get("completion_tokens")), "token counts with the reply")
        )
        findings += await _tokens(policy)
        scores = dialect is not None and scoring(DIALECTS[dialect]) is not None
        findings.append(_finding("scoring", scores, "logprobs of ids that it is given, for --scorer teacher"))
        findings.append(await _seeds(policy))
        tools = await _ask(policy, {"max_tokens": 64, "tools": [TOOL], "tool_choice": "required"})
        calls = _object(_choice(tools).get("message")).get("tool_calls")
        findings.append(_finding("tools", bool(calls), "native tool calls"))
        return findings
    finally:
        await policy.close()


async def _tokens(policy: ChatPolicy) -> list[Finding]:
    """Which capture level its replies reach."""
    needs = PolicyNeeds(capture="tokens", top_logprobs=TOP)
    facts = await policy.facts(policy.endpoints[0], needs)
    reached = facts.reached or "text"
    kind = f", {facts.logprob_kind}" if facts.logprob_kind else ""
    why = f" ({facts.why})" if facts.why else ""
    return [
        _finding("logprobs", asks(reached, "logprobs"), f"logprobs of sampled tokens{kind}"),
        _finding("token ids", asks(reached, "tokens"), "ids of prompt and sampled tokens"),
        _finding(
            "top logprobs",
            asks(reached, "logprobs") and not facts.why_no_top,
            "likeliest tokens at each place, for --top-logprobs",
        ),
        Finding("capture", None if why else True, f"--capture {reached}, as dialect {facts.dialect!r}{why}"),
    ]


async def _seeds(policy: ChatPolicy) -> Finding:
    ask: dict[str, Json] = {"max_tokens": 12, "temperature": 1.0, "seed": 7}
    first, again = [_object(_choice(await _ask(policy, ask)).get("message")).get("content") for _ in range(2)]
    return _finding("seeds", first == again, "same reply for the same seed")


async def _ask(policy: ChatPolicy, options: dict[str, Json]) -> dict[str, Any] | str:
    """The reply's JSON, or a message that says what went wrong."""
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
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def _finding(name: str, present: bool, what: str) -> Finding:
    return Finding(name, present or None, what if present else f"no {what}")
