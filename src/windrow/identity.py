"""Identity is content: digests of rows, ids of rollouts, fingerprints of what shapes them.

No id depends on position, time, port, path or concurrency: two machines that collect the same thing name it the
same. `docs/file-format.md` says how each is computed.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from windrow.records import Json

DIGEST_CHARS = 32
ID_CHARS = 24
FINGERPRINT_CHARS = 16

_canonical = msgspec.json.Encoder(order="sorted").encode


def canonical(value: Json) -> bytes:
    """JSON with sorted keys, no spaces, UTF-8: the form that is hashed."""
    return _canonical(value)


def digest(value: Json) -> str:
    """The identity of a JSON value, such as a task row."""
    return digest_and_size(value)[0]


def digest_and_size(value: Json) -> tuple[str, int]:
    """The identity of a JSON value, and how many bytes its canonical form has."""
    text = _canonical(value)
    return hashlib.sha256(text).hexdigest()[:DIGEST_CHARS], len(text)


def fingerprint(value: Json) -> str:
    """The identity of a part of the configuration."""
    return digest(value)[:FINGERPRINT_CHARS]


def group_id(
    *, source: str, split: str | None, digest: str, occurrence: int, pass_: int, behaviour: str
) -> str:
    """What all samples of one task share: everything in a rollout id but the sample and the seat."""
    return _hashed(["group", source, split, digest, occurrence, pass_, behaviour])


def group_namer(*, source: str, split: str | None, pass_: int, behaviour: str) -> Callable[[str, int], str]:
    """`group_id` of (digest, occurrence) for the tasks of one source: what they share is encoded once."""
    before = _canonical(["group", source, split])[:-1]
    after = b"%d,%s]" % (pass_, _canonical(behaviour))

    def named(digest: str, occurrence: int) -> str:
        text = b'%s,"%s",%d,%s' % (before, digest.encode(), occurrence, after)
        return hashlib.sha256(text).hexdigest()[:ID_CHARS]

    return named


def rollout_id(group: str, sample: int, seat: int | None = None) -> str:
    return _hashed(["rollout", group, sample, seat])


def episode_id(group: str, sample: int) -> str:
    return _hashed(["episode", group, sample])


def seed_of(id: str, attempt: int) -> int:
    """A 31-bit seed that belongs to this attempt and to no other."""
    return int.from_bytes(hashlib.sha256(f"{id}:{attempt}".encode()).digest()[:4], "big") & 0x7FFFFFFF


def source_hash(code: type | Callable[..., Any]) -> str | None:
    """The hash of a class's or function's source, to notice a change that no version announces."""
    try:
        return fingerprint(inspect.getsource(code))
    except (OSError, TypeError):
        return None


def _hashed(parts: list[Json]) -> str:
    return hashlib.sha256(_canonical(parts)).hexdigest()[:ID_CHARS]
