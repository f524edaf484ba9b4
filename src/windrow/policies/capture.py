"""Capture: how much of a reply's tokens is kept, and packing it.

| level      | what a turn keeps                         |
|------------|-------------------------------------------|
| `none`     | no messages either: outcome and numbers   |
| `text`     | the messages                              |
| `logprobs` | and the logprobs of the sampled tokens    |
| `tokens`   | and the ids of the prompt and the sample  |

A reply is stamped with the level that it really reached, never with the one that was asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from windrow.policies.prompt_ids import pack_ids
from windrow.records import Capture, Tokens

LEVELS: tuple[Capture, ...] = ("none", "text", "logprobs", "tokens")
_RANK: dict[Capture, int] = {level: rank for rank, level in enumerate(LEVELS)}


def asks(level: Capture, wanted: Capture) -> bool:
    """Whether capturing at `level` includes what `wanted` is about."""
    return _RANK[level] >= _RANK[wanted]


def lower(a: Capture, b: Capture) -> Capture:
    return a if _RANK[a] <= _RANK[b] else b


def capture_level(asked: Capture | None, usual: Capture, *, top: int | None) -> Capture:
    """How much is kept: what was asked for, else the usual, which is at least logprobs where `top` are wanted."""
    if asked is None and top and not asks(usual, "logprobs"):
        return "logprobs"
    return asked or usual


def held(level: Capture, tokens: Tokens | None) -> Capture:
    """What a reply reaches that says `level` and brings these tokens: a policy of a user's may say more than it has."""
    if tokens is None or tokens.logprobs is None:
        return lower(level, "text")
    prompted = tokens.prefix > 0 or bool(tokens.prompt_new)
    whole = prompted and bool(tokens.output) and len(tokens.output) == len(tokens.logprobs)
    aligned = not (len(tokens.prompt_new) % 4 or len(tokens.output) % 4)
    return level if whole and aligned else lower(level, "logprobs")


def scored_tokens(prompt: Sequence[int], output: Sequence[int], logprobs: Sequence[float]) -> Tokens:
    """Ids that were scored, not sampled."""
    return _tokens(prompt, output, logprobs, "raw")


def packed(
    level: Capture,
    *,
    prompt: Sequence[int] | bytes | None,
    output: Sequence[int] | None,
    logprobs: Sequence[float] | None,
    kind: str | None = None,
) -> tuple[Tokens | None, Capture]:
    """What was sent, as it is recorded, and the level that it reaches.

    `tokens` needs all three, a logprob for each sampled id; whatever is missing or does not fit lowers the level.
    The prompt's ids may be packed already.
    `kind` says of which distribution the logprobs are: `raw`, or `processed` by temperature and truncation.
    """
    if not asks(level, "logprobs") or logprobs is None:
        return None, lower(level, "text")
    whole = bool(prompt) and bool(output) and len(output or ()) == len(logprobs)
    if not (asks(level, "tokens") and whole):
        return _tokens((), (), logprobs, kind), "logprobs"
    return _tokens(prompt or (), output or (), logprobs, kind), "tokens"


def _tokens(
    prompt: Sequence[int] | bytes, output: Sequence[int], logprobs: Sequence[float], kind: str | None
) -> Tokens:
    return Tokens(
        prefix=0,
        prompt_new=prompt if isinstance(prompt, bytes) else pack_ids(prompt),
        output=pack_ids(output),
        logprobs=struct.pack(f"<{len(logprobs)}f", *logprobs),
        logprob_kind=kind,
    )
