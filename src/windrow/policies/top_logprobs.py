"""The likeliest tokens at each place of a reply (`--top-logprobs K`), packed as `Tokens.top`.

K of them a place, the likeliest first, by id where the server tells ids, else by their text. A place with fewer is filled
up with −1 (null for text) and a logprob of −inf: no token, no probability.
"""

from __future__ import annotations

import math
import struct
from base64 import b64encode
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from windrow.records import Json, Tokens

MISSING_LOGPROB = -9999.0  # what vLLM sends in the place of one it does not have
BY_ID = "token_id:"  # how vLLM spells a token when it is to tell ids


class Likely(NamedTuple):
    """One of the likeliest tokens at a place: its id, or its text where the server tells no id."""

    name: int | str
    logprob: float


Place = Sequence[Likely]


def by_id(token: str) -> int | str:
    """The id that vLLM spells as a token; another token as it is."""
    number = token.removeprefix(BY_ID)
    return int(number) if number != token and number.isdecimal() and int(number) < 2**31 else token


def with_top(
    tokens: Tokens | None, k: int, places: Sequence[Place | None] | None, sampled: Sequence[str] | None = None
) -> Tokens | None:
    """`tokens` with the `k` likeliest of each place, where the server told of every place of the reply.

    `sampled` are the sampled tokens' texts, kept where the others are known by their text alone.
    """
    if tokens is None or tokens.logprobs is None or not k or places is None:
        return tokens
    if not places or len(places) * 4 != len(tokens.logprobs) or not all(places):
        return tokens
    best = [_best(place or (), k) for place in places]
    return msgspec.structs.replace(tokens, top=_packed(best, k, sampled))


def _best(place: Place, k: int) -> list[Likely]:
    told = [likely for likely in place if likely.logprob > MISSING_LOGPROB]
    return sorted(told, key=lambda likely: -likely.logprob)[:k]


def _packed(places: list[list[Likely]], k: int, sampled: Sequence[str] | None) -> dict[str, Json]:
    logprobs = [likely.logprob for place in places for likely in _filled(place, k, -1)]
    packed: dict[str, Json] = {"k": k, "logprobs": _text(struct.pack(f"<{len(logprobs)}f", *logprobs))}
    if all(isinstance(likely.name, int) for place in places for likely in place):
        ids = [likely.name for place in places for likely in _filled(place, k, -1)]
        return {**packed, "ids": _text(struct.pack(f"<{len(ids)}i", *ids))}
    texts = [[_spelled(likely.name) for likely in place] + [None] * (k - len(place)) for place in places]
    return {**packed, "texts": texts, **({"sampled": list(sampled)} if sampled is not None else {})}


def _spelled(name: int | str) -> str:
    """A token's text; of one that has an id while others have none, as vLLM spells it."""
    return name if isinstance(name, str) else f"{BY_ID}{name}"


def _filled(place: list[Likely], k: int, nothing: int) -> list[Likely]:
    return place + [Likely(nothing, -math.inf)] * (k - len(place))


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()
