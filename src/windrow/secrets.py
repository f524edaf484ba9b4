"""Secrets come from the environment and go into request headers, nowhere else.

A `Redactor` knows their values and takes them out of whatever is about to be shown or written: a server may well
quote a key back in an error, or in a reply.
"""

from __future__ import annotations

import os

import msgspec

from windrow.errors import UsageError

MASK = "[redacted]"
MIN_SECRET_CHARS = 8  # a placeholder such as "none" or "EMPTY" is no secret, and would mask ordinary words


class Redactor:
    def __init__(self) -> None:
        self._texts: list[str] = []
        self._bytes: list[bytes] = []

    def add(self, secret: str) -> None:
        if len(secret) >= MIN_SECRET_CHARS and secret not in self._texts:
            self._texts.append(secret)
            self._bytes += sorted({secret.encode(), msgspec.json.encode(secret)[1:-1]})

    def text(self, text: str) -> str:
        for secret in self._texts:
            text = text.replace(secret, MASK)
        return text

    def line(self, line: bytes) -> bytes:
        for secret in self._bytes:
            if secret in line:
                line = line.replace(secret, MASK.encode())
        return line


def api_key(name: str, redactor: Redactor, *, required: bool) -> str | None:
    """The key in the environment variable `name`; the redactor learns it before anyone else sees it."""
    key = os.environ.get(name, "").strip()
    if not key:
        if required:
            raise UsageError(f"--api-key-env {name}: the environment variable {name} is not set")
        return None
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the key in {name} holds characters that cannot be sent in a header")
    redactor.add(key)
    return key
