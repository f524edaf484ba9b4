"""The likeliest tokens at each position of a reply (`Tokens.top`) as arrays."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from windrow.exports.tokens.arrays import Floats, Ids, floats_of, ids_of
from windrow.exports.tokens.sequences import TrainingSequence
from windrow.records import Json, Tokens, Turn
from windrow.util.token_contexts import BrokenContext

IdRows: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.int32]]"
FloatRows: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.float32]]"


class Top(NamedTuple):
    """One row per position, `k` wide, the likeliest first; −1 and −inf where there were fewer. `ids` or else `texts`."""

    k: int
    logprobs: FloatRows
    ids: IdRows | None
    texts: list[list[str | None]] | None


def top_of(tokens: Tokens) -> Top | None:
    """What a turn keeps of the likeliest tokens; BrokenContext where it does not fit the turn's output."""
    packed = tokens.top
    if not isinstance(packed, dict):
        return None
    k, texts = packed.get("k"), packed.get("texts")
    if not isinstance(k, int) or k < 1:
        raise BrokenContext(f"its likeliest tokens are {k!r} a place")
    count = len(tokens.logprobs or b"") // 4
    logprobs = floats_of(_raw(packed.get("logprobs")))
    ids = ids_of(_raw(packed["ids"])) if "ids" in packed else None
    if len(logprobs) != count * k or (ids is not None and len(ids) != count * k):
        raise BrokenContext(f"it has {len(logprobs)} likeliest tokens for {count} places of {k}")
    if ids is None and not (isinstance(texts, list) and len(texts) == count):
        raise BrokenContext("its likeliest tokens have neither ids nor texts")
    return Top(
        k,
        logprobs.reshape(count, k),
        None if ids is None else ids.reshape(count, k),
        None if ids is not None else texts,
    )


class Laid(NamedTuple):
    """The likeliest tokens of a sequence end to end, `counts` of them at each place; none where nothing is trained."""

    counts: Ids
    ids: Ids
    logprobs: Floats


def laid_out(turns: Sequence[Turn], sequence: TrainingSequence) -> Laid:
    """The likeliest tokens of a sequence's trained ids, as far as its turns keep them by id."""
    counts = np.zeros(len(sequence), np.int32)
    ids, logprobs = [ids_of(b"")], [floats_of(b"")]
    for span in sequence.spans:
        tokens = turns[span.turn].tokens
        top = top_of(tokens) if span.trained and tokens is not None else None
        if top is None or top.ids is None:
            continue
        there = top.ids >= 0
        counts[span.start : span.stop] = there.sum(axis=1)
        ids.append(top.ids[there])
        logprobs.append(top.logprobs[there])
    return Laid(counts, np.concatenate(ids), np.concatenate(logprobs))


def _raw(text: Json) -> bytes:
    try:
        return b64decode(text or "", validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise BrokenContext("its likeliest tokens are not base64") from None
