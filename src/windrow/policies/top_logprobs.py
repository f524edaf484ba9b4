"""The likeliest tokens at each position of a reply (`--top-logprobs K`), packed as `Tokens.top`.

There are K per position, the likeliest first, by id where the server gives ids, else by text. A position with fewer is
padded with −1 (null for text) and a logprob of −inf: no token, no probability.
"""

from __future__ import annotations

import math
import struct
from base64 import b64encode
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from windrow.records import Json, Tokens

MISSING_LOGPROB = -9999.0  # vLLM's placeholder for a logprob that it does not have
BY_ID = "token_id:"  # vLLM's prefix for a token that is written as its id


class TopToken(NamedTuple):
    """One of the likeliest tokens at a position: its id, or its text where the server gives no id."""

    name: int | str
    logprob: float


TopTokens = Sequence[TopToken]


def by_id(token: str) -> int | str:
    """The id of a token that vLLM wrote as an id; any other token as it is."""
    number = token.removeprefix(BY_ID)
    return int(number) if number != token and number.isdecimal() and int(number) < 2**31 else token


def with_top(
    tokens: Tokens | None,
    k: int,
    by_position: Sequence[TopTokens | None] | None,
    sampled: Sequence[str] | None = None,
) -> Tokens | None:
    """`tokens` with the `k` likeliest at each position, where the server gave some for every position.

    `sampled` are the sampled tokens' texts, recorded where the likeliest have texts and no ids.
    """
    if tokens is None or tokens.logprobs is None or not k or by_position is None:
        return tokens
    if not by_position or len(by_position) * 4 != len(tokens.logprobs) or not all(by_position):
        return tokens
    best = [_best(candidates or (), k) for candidates in by_position]
    return msgspec.structs.replace(tokens, top=_packed(best, k, sampled))


def _best(candidates: TopTokens, k: int) -> list[TopToken]:
    present = [likely for likely in candidates if likely.logprob > MISSING_LOGPROB]
    return sorted(present, key=lambda likely: -likely.logprob)[:k]


def _packed(by_position: list[list[TopToken]], k: int, sampled: Sequence[str] | None) -> dict[str, Json]:
    logprobs = [likely.logprob for candidates in by_position for likely in _filled(candidates, k, -1)]
    packed: dict[str, Json] = {"k": k, "logprobs": _text(struct.pack(f"<{len(logprobs)}f", *logprobs))}
    if all(isinstance(likely.name, int) for candidates in by_position for likely in candidates):
        ids = [likely.name for candidates in by_position for likely in _filled(candidates, k, -1)]
        return {**packed, "ids": _text(struct.pack(f"<{len(ids)}i", *ids))}
    texts = [
        [_spelled(likely.name) for likely in candidates] + [None] * (k - len(candidates))
        for candidates in by_position
    ]
    return {**packed, "texts": texts, **({"sampled": list(sampled)} if sampled is not None else {})}


def _spelled(name: int | str) -> str:
    """A token's text; an id is written as vLLM writes it, for positions where only some tokens have one."""
    return name if isinstance(name, str) else f"{BY_ID}{name}"


def _filled(candidates: list[TopToken], k: int, nothing: int) -> list[TopToken]:
    return candidates + [TopToken(nothing, -math.inf)] * (k - len(candidates))


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()
