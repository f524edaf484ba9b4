"""The arrays of a record as numpy sees them: views, without a copy."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from windrow.util.token_contexts import BrokenContext

Ids: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int32]]"
Mask: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"
Floats: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float32]]"

_ID = np.dtype("<i4")
_FLOAT = np.dtype("<f4")


def ids_of(raw: bytes) -> Ids:
    """Little-endian int32, as they stand in a record."""
    try:
        return np.frombuffer(raw, _ID)
    except ValueError:
        raise BrokenContext(f"{len(raw)} bytes are no whole number of ids") from None


def floats_of(raw: bytes) -> Floats:
    """Little-endian float32, as they stand in a record."""
    try:
        return np.frombuffer(raw, _FLOAT)
    except ValueError:
        raise BrokenContext(f"{len(raw)} bytes are no whole number of logprobs") from None


def shared_length(a: Ids, b: Ids) -> int:
    """How many ids the two begin with that are the same."""
    most = min(len(a), len(b))
    differ = a[:most] != b[:most]
    first = int(differ.argmax()) if most else 0
    return first if most and differ[first] else most
