"""What a request says before its body, as bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from windrow.errors import UsageError
from windrow.policies.http_client.decoding import ACCEPTED

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"


class Origin(NamedTuple):
    """The server that a URL is of."""

    tls: bool
    host: str  # as DNS and certificates have it
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def origin_of(url: str) -> Origin:
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        host = host.encode("idna").decode()  # what is ASCII stays as it is, or is too long for a name
    except UnicodeError:
        raise UsageError(f"{host!r:.80} is no host name") from None
    tls = parts.scheme == "https"
    return Origin(tls, host, parts.port or (443 if tls else 80))


def header_lines(headers: Mapping[str, str]) -> str:
    """The headers as they are sent. UsageError, without the value, where one cannot be: it may be a key."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise UsageError(
                f"the header {name!r:.80} cannot be sent: a header is one line of Latin-1 characters. If it holds a "
                f"key, look for line breaks in it"
            )
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def request_head(method: str, url: str, headers: str) -> bytes:
    """The lines before the body, but for its length and the empty line. `headers` are lines, each with its end."""
    parts = urlsplit(url)
    path = quote(parts.path or "/", safe=_PATH_SAFE)
    if parts.query:
        path += "?" + quote(parts.query, safe=_PATH_SAFE + "?")
    origin = origin_of(url)
    host = str(origin)
    if parts.port is None:
        host = host.rpartition(":")[0]
    return (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nAccept-Encoding: {ACCEPTED}\r\n"
        f"User-Agent: windrow\r\n{headers}"
    ).encode("latin-1")
