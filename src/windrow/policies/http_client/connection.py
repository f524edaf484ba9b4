"""One HTTP/1.1 connection: a request at a time, and its response.

llhttp, by way of httptools, reads the responses. It is strict about what frames them (lengths, chunks, line ends), and
whatever it refuses ends the connection. So does whatever comes without being asked for: the next request never meets
bytes that were sent before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from windrow.policies.http_client.base import (
    HttpError,
    ProtocolError,
    RepliesTooLarge,
    Response,
    ResponseTooLarge,
    StaleConnectionError,
    TruncatedContent,
)
from windrow.policies.http_client.decoding import ContentDecoder, content_decoder
from windrow.util.byte_budget import FREE_BYTES, REPLIES, HeldBytes

MAX_HEAD_BYTES = 64 << 10  # of a head or of trailers, and of all else that is not the body


class Connection(asyncio.Protocol):
    """The loop calls `connection_…` and `data_received`, the parser `on_…`."""

    __slots__ = (
        "_body",
        "_closed",
        "_covered_bytes",
        "_decoder",
        "_head",
        "_headers",
        "_heard_bytes",
        "_held",
        "_keep_alive",
        "_max_body_bytes",
        "_on_closed",
        "_parser",
        "_pending",
        "_reused",
        "_silent_bytes",
        "_status",
        "_transport",
        "_until_close",
        "idle_since",
        "on_header",
    )

    def __init__(self, max_body_bytes: int, on_closed: Callable[[Connection], None]) -> None:
        self.idle_since = 0.0
        self._max_body_bytes = max_body_bytes
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._pending: asyncio.Future[Response] | None = None  # the request that is under way
        self._closed = self._reused = False
        self._keep_alive = True
        self._head: dict[bytes, bytes] = {}  # of the message that is being read, then its trailers
        self.on_header = self._head.__setitem__
        self._parser = HttpResponseParser(self)
        self._expect_response()

    def _expect_response(self) -> None:
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._until_close = False
        self._heard_bytes = 0  # of this response
        self._silent_bytes = 0  # since the last of its body
        self._body: bytes | bytearray = b""
        self._decoder: ContentDecoder | None = None
        self._held: HeldBytes | None = None
        self._covered_bytes = min(
            FREE_BYTES, self._max_body_bytes
        )  # how long the body may be without a closer look

    def request(self, data: bytes, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Response]:
        """Send a whole request. The response follows, or HttpError. Whoever stops waiting must `abort`."""
        assert self._transport is not None
        assert self._pending is None, "one request at a time"
        pending: asyncio.Future[Response] = loop.create_future()
        if self._closed:  # as soon as it was made: nobody would tell of its end once more
            pending.set_exception(ProtocolError("the connection ended before the request was sent"))
            return pending
        self._pending = pending
        self._transport.write(data)
        return pending

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent here; asked for once the response is there."""
        if self._closed or not self._keep_alive:
            return False
        assert self._transport is not None
        # A server may answer before it has read everything. The rest would be taken for the next request.
        return self._transport.get_write_buffer_size() == 0

    @property
    def closed(self) -> bool:
        return self._closed

    def abort(self) -> None:
        self._closed = True
        self._body, self._held = b"", None
        if self._transport is not None:
            self._transport.abort()

    # -- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is none of asyncio's

    def data_received(self, data: bytes) -> None:
        if self._pending is None:
            self.abort()  # nobody has asked for anything
            return
        size = len(data)
        self._heard_bytes += size
        self._silent_bytes += size
        try:
            self._parser.feed_data(data)
        except HttpParserError as problem:
            cause = problem.__context__  # what a callback raised
            self._fail(cause if isinstance(cause, HttpError) else ProtocolError(f"not HTTP: {problem}"))
        except HttpParserUpgrade:
            self._fail(ProtocolError("the server switched to another protocol"))
        else:
            if self._silent_bytes > MAX_HEAD_BYTES and self._pending is not None:
                self._fail(ProtocolError(f"the head of the response is over {MAX_HEAD_BYTES >> 10} KiB"))

    def connection_lost(self, problem: Exception | None) -> None:
        self._closed = True
        self._on_closed(self)
        if self._pending is None:
            return
        if problem is None and self._until_close:
            self._keep_alive = False
            self._complete()
        elif self._heard_bytes:
            self._fail(ProtocolError("the connection ended in the middle of a response"))
        else:
            message = f"the connection ended without a response ({problem or 'closed by the server'})"
            self._fail((StaleConnectionError if self._reused else ProtocolError)(message))

    # -- called by the parser

    def on_message_begin(self) -> None:
        if self._pending is None:
            raise ProtocolError("more than one response")
        self._head.clear()

    def on_headers_complete(self) -> None:
        self._status = status = self._parser.get_status_code()
        if status < 200:
            if status < 100 or status == 101:
                raise ProtocolError(f"a response of status {status}, which was not asked for")
            return  # 100 Continue, 103 Early Hints: the response follows
        head = self._head
        if self._heard_bytes > MAX_HEAD_BYTES and sum(map(len, [*head, *head.values()])) > MAX_HEAD_BYTES:
            raise ProtocolError(f"the head of the response is over {MAX_HEAD_BYTES >> 10} KiB")
        self._headers = headers = {name.lower(): value for name, value in head.items()}
        length = headers.get(b"content-length")
        if length is not None:
            if int(length) > self._max_body_bytes:
                raise ResponseTooLarge(self._max_body_bytes)
        elif b"transfer-encoding" not in headers:
            self._until_close = True
        elif headers[b"transfer-encoding"].lower() != b"chunked":
            raise ProtocolError("a transfer encoding other than chunked")
        if b"content-encoding" in headers:
            self._decoder = content_decoder(headers, self._max_body_bytes)

    def on_body(self, part: bytes) -> None:
        self._silent_bytes = 0
        if self._decoder is not None:
            part = self._decoder.decode(part)
        body = self._body
        size = len(body) + len(part)
        if size > self._covered_bytes:
            self._cover(size)
        if not body:
            self._body = part
        elif isinstance(body, bytearray):
            body += part  # not a list of parts: a server may send two bytes at a time
        else:
            self._body = bytearray(body + part)

    def _cover(self, size: int) -> None:
        """Let the body become this long, or end the response."""
        if size > self._max_body_bytes:
            raise ResponseTooLarge(self._max_body_bytes)
        if self._held is None:
            self._held = HeldBytes(REPLIES)
        if not self._held.cover(size):
            raise RepliesTooLarge
        self._covered_bytes = min(self._held.covered_bytes, self._max_body_bytes)

    def on_message_complete(self) -> None:
        if self._status >= 200:
            self._keep_alive = self._parser.should_keep_alive()
            self._complete()

    # --

    def _complete(self) -> None:
        if self._decoder is not None and not self._decoder.finished:
            self._fail(TruncatedContent())
            return
        pending, self._pending = self._pending, None
        assert pending is not None
        response = Response(self._status, self._headers, bytes(self._body), self._held)
        self._reused = True
        self._expect_response()
        if not pending.done():
            pending.set_result(response)

    def _fail(self, problem: HttpError) -> None:
        pending, self._pending = self._pending, None
        if pending is not None and not pending.done():
            pending.set_exception(problem)
        self.abort()
