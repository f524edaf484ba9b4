"""Redaction: secrets come from the environment and go into request headers, nowhere else.

A `Redactor` knows their values and removes them from all text that is shown or written: a server may quote a key in an
error or in a reply.
"""

from __future__ import annotations

import os
import re

import msgspec

from windrow.errors import UsageError
from windrow.records import Json

MASK = "[redacted]"
MIN_SECRET_CHARS = 8  # a placeholder such as "none" or "EMPTY" is no secret, and would mask ordinary words
_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL", re.I)


def is_secret(variable: str) -> bool:
    """Whether an environment variable of this name seems to hold a secret."""
    return _SECRET.search(variable) is not None


def secrets_of_header(name: str, value: str) -> tuple[str, ...]:
    """The secrets in a header: its value and, after a scheme such as Bearer, the credentials alone."""
    if not (is_secret(name) or name.lower() in _SECRET_HEADERS):
        return ()
    return value, value.partition(" ")[2].strip()


class Redactor:
    """Knows the secrets of a run, and replaces them in texts and encoded lines."""

    def __init__(self) -> None:
        self._forms: list[str] = []  # each secret as it is, and as it is written inside JSON text
        self._bytes: list[bytes] = []  # the same, in an encoded line

    def add(self, secret: str) -> None:
        secret = secret.strip()  # a variable may end with a newline, which a server does not quote
        if len(secret) >= MIN_SECRET_CHARS and secret not in self._forms:
            self._forms += sorted({secret, _escaped(secret).decode(), secret.replace("/", "\\/")})
            # Longest first: of two with the same beginning, nothing is left.
            self._forms.sort(key=len, reverse=True)
            self._bytes = [_escaped(form) for form in self._forms]

    @property
    def forms(self) -> tuple[str, ...]:
        """Every text that is removed, for a process that redacts its own output."""
        return tuple(self._forms)

    def text(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, MASK)
        return text

    def line(self, lines: bytes) -> bytes:
        """JSON lines with the secrets removed from their strings. Numbers are not changed."""
        if not any(form in lines for form in self._bytes):
            return lines
        return b"\n".join(
            line and msgspec.json.encode(self._value(msgspec.json.decode(line)))
            for line in lines.split(b"\n")
        )

    def tree(self, tree: dict[str, Json]) -> dict[str, Json]:
        """Plain values with the secrets removed from their strings."""
        return {self.text(key): self._value(item) for key, item in tree.items()}

    def _value(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return self.tree(value)
        return [self._value(item) for item in value] if isinstance(value, list) else value


def _escaped(text: str) -> bytes:
    return msgspec.json.encode(text)[1:-1]


def api_key(name: str, redactor: Redactor, *, required: bool) -> str | None:
    """The key in the environment variable `name`. The redactor knows it before it is used."""
    key = os.environ.get(name, "").strip()
    if not key:
        if required:
            raise UsageError(f"--api-key-env {name}: the environment variable {name} is not set")
        return None
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the key in {name} holds characters that cannot be sent in a header")
    redactor.add(key)
    return key
