"""Probing an endpoint before the first rollout: which server it is, and which capture level its replies reach.

Each kind of server identifies itself at its own paths. One short completion shows what its replies contain; two more of
one token each show whether its logprobs are the model's own or come after temperature. None of this is part of a
rollout's identity.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import msgspec

from windrow.errors import EndpointError, InfraError, PolicyError
from windrow.policies.base import Request
from windrow.policies.capture import asks, lower
from windrow.policies.dialects import DIALECTS
from windrow.policies.dialects.chat import OpenAIChat
from windrow.policies.endpoint import Endpoint
from windrow.policies.wire import UNDECODABLE
from windrow.records import Capture, Json, Message

WORDS = "Say: one two three"
SURE = 0.02  # two logprobs of the same distribution differ by less; one nearer to 0 tells nothing
SCALED = 0.1  # a temperature of 2 changes a logprob by more


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The result of probing. `reached` is None where the endpoint was too busy to tell."""

    dialect: str
    reached: Capture | None
    why: str = ""  # it reaches no more, in the server's words where it has some
    why_no_top: str = ""  # it does not tell the likeliest tokens, where they are wanted
    logprob_kind: str | None = None


async def find_out(
    endpoint: Endpoint, model: str, wanted: Capture, *, top: int = 0, auto: bool, timeout_s: float
) -> Facts:
    """Probe an endpoint; with `auto`, also set the dialect that fits it.

    `top`: how many of the likeliest tokens are wanted at each position of a reply.
    """
    named = True
    if auto:
        _, name = await identify(endpoint, timeout_s)
        named = name is not None
        endpoint.dialect = DIALECTS[name or ("vllm" if asks(wanted, "tokens") else "openai")]
    reached, why = await _reached(endpoint, model, wanted, timeout_s)
    if reached == "text" and not named and asks(wanted, "tokens"):  # it may only dislike being asked for ids
        endpoint.dialect = DIALECTS["openai"]
        reached, _ = await _reached(endpoint, model, "logprobs", timeout_s)
    if reached is not None and asks(reached, "logprobs") and endpoint.dialect.logprob_kind is None:
        endpoint.dialect = copy.copy(endpoint.dialect)
        endpoint.dialect.logprob_kind = await _kind(endpoint, model, timeout_s)
    no_top = ""
    if top and reached is not None and asks(reached, "logprobs"):
        no_top = await _why_no_top(endpoint, model, reached, top, timeout_s)
    return Facts(
        dialect=endpoint.dialect.name,
        reached=reached,
        why=why,
        why_no_top=no_top,
        logprob_kind=endpoint.dialect.logprob_kind,
    )


def require(facts: Facts, wanted: Capture, where: str) -> None:
    """EndpointError where an endpoint does not reach the `wanted` level."""
    if facts.reached is None or asks(facts.reached, wanted):
        return
    because = f" ({facts.why})" if facts.why else ""
    raise EndpointError(
        f"--capture {wanted}: {where} gives {facts.reached} as {facts.dialect!r}{because}. "
        f"Collect with --capture {facts.reached}, or "
        f"serve the model with vLLM (0.10.2 or later), SGLang or llama.cpp and name it with --dialect"
    )


def require_top(facts: Facts, top: int, where: str) -> None:
    """EndpointError where an endpoint does not return the likeliest tokens."""
    if facts.why_no_top:
        raise EndpointError(
            f"--top-logprobs {top}: {where} does not give them as {facts.dialect!r} ({facts.why_no_top}). "
            f"Ask for fewer, or leave it out (vLLM gives one less than its max_logprobs, 20 where nothing is said)"
        )


async def identify(endpoint: Endpoint, timeout_s: float) -> tuple[str, str | None]:
    """The server's name for people, and its dialect; None where it does not identify itself."""
    version, sglang, llama = await asyncio.gather(
        *(endpoint.get_object(path, timeout_s) for path in ("/version", "/get_server_info", "/props"))
    )
    if "default_generation_settings" in llama:
        return f"llama.cpp {_word(llama.get('build_info'))}".strip(), "llamacpp"
    if "model_path" in sglang or "internal_states" in sglang:
        return f"SGLang {_word(sglang.get('version'))}".strip(), "sglang"
    if isinstance(version.get("version"), str):
        return f"vLLM {version['version']}", "vllm"
    return "an OpenAI-compatible server", None


async def _reached(
    endpoint: Endpoint, model: str, wanted: Capture, timeout_s: float
) -> tuple[Capture | None, str]:
    """The level that one short completion reaches, and why it is no higher."""
    try:
        async with asyncio.timeout(timeout_s):
            completion = await endpoint.complete(_probing(wanted), model)
    except (InfraError, TimeoutError):
        return None, "it was too busy to say"
    except PolicyError as problem:
        return "text", str(problem)
    missing = "" if completion.capture == wanted else "its replies do not tell more"
    return lower(completion.capture, wanted), missing


async def _why_no_top(endpoint: Endpoint, model: str, level: Capture, top: int, timeout_s: float) -> str:
    """Why a short completion lacks the likeliest tokens; empty where it has them or the server is too busy."""
    try:
        async with asyncio.timeout(timeout_s):
            completion = await endpoint.complete(_probing(level, top), model)
    except (InfraError, TimeoutError):
        return ""
    except PolicyError as problem:
        return str(problem)
    tokens = completion.tokens
    return "" if tokens is not None and tokens.top is not None else "its replies do not tell them"


def _probing(level: Capture, top: int = 0) -> Request:
    return Request(
        messages=(Message(role="user", content=WORDS, origin="task"),),
        tools=(),
        sampling={"max_tokens": 8},
        id="probe",
        attempt=1,
        turn=0,
        capture=level,
        top_logprobs=top,
        new_connection=True,
    )


async def _kind(endpoint: Endpoint, model: str, timeout_s: float) -> str | None:
    """`raw` where the temperature does not change the logprob of the likeliest token, else `processed` or None."""
    if not isinstance(endpoint.dialect, OpenAIChat):
        return None
    logprobs = [await _likeliest(endpoint, model, temperature, timeout_s) for temperature in (1.0, 2.0)]
    plain, scaled = logprobs
    if plain is None or scaled is None or plain > -SURE:
        return None
    if abs(plain - scaled) < SURE:
        return "raw"
    return "processed" if scaled < plain - SCALED else None


async def _likeliest(endpoint: Endpoint, model: str, temperature: float, timeout_s: float) -> float | None:
    """The logprob of the likeliest first token of a reply."""
    body: dict[str, Json] = {
        "model": model,
        "messages": [{"role": "user", "content": "Write any one word."}],
        "max_tokens": 1,
        "temperature": temperature,
        "logprobs": True,
        "top_logprobs": 1,
    }
    try:
        async with asyncio.timeout(timeout_s):
            answer = await endpoint.on_new_connections().ask(endpoint.dialect, body)
        return _decode(answer).choices[0].logprobs.content[0].top_logprobs[0].logprob
    except (InfraError, PolicyError, TimeoutError, IndexError, *UNDECODABLE):
        return None


class _Likely(msgspec.Struct):
    logprob: float


class _Entry(msgspec.Struct):
    top_logprobs: list[_Likely]


class _Logprobs(msgspec.Struct):
    content: list[_Entry]


class _Choice(msgspec.Struct):
    logprobs: _Logprobs


class _Reply(msgspec.Struct):
    choices: list[_Choice]


_decode = msgspec.json.Decoder(_Reply).decode


def _word(value: Any) -> str:
    return value[:40] if isinstance(value, str) else ""
