"""Capture levels: how much of a reply's tokens is kept, and how they are packed.

| level      | what a turn keeps                         |
|------------|-------------------------------------------|
| `none`     | no messages either: outcome and numbers   |
| `text`     | the messages                              |
| `logprobs` | and the logprobs of the sampled tokens    |
| `tokens`   | and the ids of the prompt and the sample  |

A reply is recorded with the level that it reached, which may be lower than the one that was asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from windrow.policies.prompt_ids import pack_ids
from windrow.records import Capture, Tokens

LEVELS: tuple[Capture, ...] = ("none", "text", "logprobs", "tokens")
_RANK: dict[Capture, int] = {level: rank for rank, level in enumerate(LEVELS)}


def asks(level: Capture, wanted: Capture) -> bool:
    """Whether capturing at `level` includes everything that `wanted` keeps."""
    return _RANK[level] >= _RANK[wanted]


def lower(a: Capture, b: Capture) -> Capture:
    return a if _RANK[a] <= _RANK[b] else b


def capture_level(asked: Capture | None, usual: Capture, *, top: int | None) -> Capture:
    """The level of a run: `asked`, else `usual`, raised to logprobs where the `top` likeliest tokens are wanted."""
    if asked is None and top and not asks(usual, "logprobs"):
        return "logprobs"
    return asked or usual


def held(level: Capture, tokens: Tokens | None) -> Capture:
    """The level that `tokens` really reach, at most `level`: a user's policy may claim more than it returns."""
    if tokens is None or tokens.logprobs is None:
        return lower(level, "text")
    prompted = tokens.prefix > 0 or bool(tokens.prompt_new)
    whole = prompted and bool(tokens.output) and len(tokens.output) == len(tokens.logprobs)
    aligned = not (len(tokens.prompt_new) % 4 or len(tokens.output) % 4)
    return level if whole and aligned else lower(level, "logprobs")


def scored_tokens(prompt: Sequence[int], output: Sequence[int], logprobs: Sequence[float]) -> Tokens:
    """Tokens of ids that were scored, not sampled."""
    return _tokens(prompt, output, logprobs, "raw")


def packed(
    level: Capture,
    *,
    prompt: Sequence[int] | bytes | None,
    output: Sequence[int] | None,
    logprobs: Sequence[float] | None,
    kind: str | None = None,
) -> tuple[Tokens | None, Capture]:
    """The tokens as they are recorded, and the level that they reach.

    Level `tokens` needs all three, with one logprob per sampled id; anything missing or mismatched lowers the level.
    The prompt's ids may already be packed.
    `kind` names the distribution of the logprobs: `raw`, or `processed` by temperature and truncation.
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
