"""What an HTTP client promises its users, whichever one serves them."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import NamedTuple, Protocol

from windrow.util.byte_budget import HeldBytes, too_much


class HttpError(OSError):
    """No usable response came. `str(error)` says why, for a person."""


class ConnectError(HttpError):
    """No connection was made: the name is unknown, or nobody listens there."""


class TlsError(HttpError):
    """The connection was made and could not be secured."""


class CertificateError(TlsError):
    """The server's certificate was refused."""


class StaleConnectionError(HttpError):
    """A reused connection ended before any byte of the response: the server may never have seen the request."""


class ProtocolError(HttpError):
    """What the server sent is not HTTP, or it ended too soon."""


class ContentError(HttpError):
    """The server answered properly, with a body that is of no use; `str(error)` says what body."""


class ResponseTooLarge(ContentError):
    """The body, unpacked, is longer than the client reads."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"more than {max_bytes / 2**20:g} MiB")


class RepliesTooLarge(ContentError):
    """The replies of all requests together are more than this process may hold."""

    def __init__(self) -> None:
        super().__init__(too_much())


class TruncatedContent(ContentError):
    """The body arrived whole, and what was packed in it is cut off."""

    def __init__(self) -> None:
        super().__init__("a packed body that is cut off")


class Response(NamedTuple):
    """A whole response. `headers` are as they were received, but for their names, which are in lower case."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes
    held: HeldBytes | None = (
        None  # what a large body takes of the budget, for as long as the response is there
    )

    def header(self, name: str) -> str | None:
        """The value of a header; `name` is in lower case."""
        value = self.headers.get(name.encode())
        return None if value is None else value.decode("latin-1")


class HttpClient(Protocol):
    """Sends requests to one server. A request is sent once: whoever wants it repeated does so, and counts it.

    Redirects are not followed and cookies are not kept. There is no deadline of its own: cancelling a request drops
    its connection. HttpError is all that `post` and `get` raise.
    """

    def post(self, url: str, body: bytes, *, new_connection: bool = False) -> Awaitable[Response]:
        """`new_connection`: do not reuse one, so that this request cannot end as a StaleConnectionError."""
        ...

    def get(self, url: str, *, new_connection: bool = False) -> Awaitable[Response]: ...

    async def close(self) -> None:
        """Close every connection; requests that are under way fail."""
        ...
