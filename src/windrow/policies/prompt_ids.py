"""Reading the prompt ids that a server reports. A prompt mostly repeats the one before it: only what is new is decoded.

Ids come as JSON, which costs ten times as much to decode as to compare.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from windrow.policies.wire import ABSENT, UNDECODABLE, TokenId
from windrow.util.token_contexts import ID_BYTES

Reply = TypeVar("Reply")

WORTH_KEEPING = 256  # ids: fewer are decoded before they are compared
_decode = msgspec.json.Decoder(list[TokenId]).decode


class PromptReader:
    """Reads the prompts of one episode, in order, and keeps the last one as the server sent it and as it is recorded."""

    __slots__ = ("_packed", "_text")

    def __init__(self) -> None:
        self._text = b""  # of the last array, up to its last id
        self._packed = b""

    def read(self, array: msgspec.Raw) -> bytes | None:
        """The ids of a JSON array that is known to be well-formed, packed; None for null.

        Raises what decoding raises where they are no ids.
        """
        text = bytes(memoryview(array)[:-1]).rstrip()
        if text == b"nul":
            return None
        start = len(self._text)
        if start and text.startswith(self._text) and text[start : start + 1] in (b"", b","):
            rest = _decode(b"[%b]" % text[start + 1 :])
            packed = self._packed + pack_ids(rest) if rest else self._packed
        else:
            packed = pack_ids(_decode(array))
        if len(packed) >= WORTH_KEEPING * ID_BYTES:
            self._text, self._packed = text, packed
        return packed


def decoded(answer: bytes, decode: Callable[[bytes], Reply], check: Callable[[bytes], object]) -> Reply:
    """What `decode` makes of an answer; what it refuses, `check` refuses in its own words."""
    try:
        return decode(answer)
    except UNDECODABLE:
        check(answer)
        raise


def read_prompt_ids(
    fields: Iterable[msgspec.Raw],
    prompt_field: msgspec.Raw | None,
    reader: PromptReader,
    check: Callable[[], object],
) -> bytes | None:
    """The ids in that of the fields which is `prompt_field`, packed. The others have to be ids as well.

    `check` decodes the whole reply: where something is no id, it raises in words that say where.
    """
    prompt: bytes | None = None
    try:
        for field in fields:
            if field is ABSENT:
                continue
            ids = (reader if field is prompt_field else PromptReader()).read(field)
            prompt = ids if field is prompt_field else prompt
    except UNDECODABLE:
        check()
        raise
    return prompt


def pack_ids(ids: Sequence[int]) -> bytes:
    """Little-endian 32-bit numbers: five times as fast as by way of `array`."""
    return struct.pack(f"<{len(ids)}i", *ids)
