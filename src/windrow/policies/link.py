"""Links: kept-alive HTTP/1.1 connections to model servers, one request at a time on each.

A request is one write, its answer one wait. What a full client does beside that (cookies, redirects, proxies, hooks) took
six times the CPU of the request itself. llhttp, by way of `httptools`, reads the answers.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

IDLE_S = 15.0  # a connection that was not used for longer is not trusted to be there
NAMES_S = 300.0  # for which an address is remembered
HEAD_START_S = 0.25  # of one address before the next one is tried as well
MAX_HEAD_BYTES = 64 << 10


class LinkError(OSError):
    """The connection failed, or what came over it is not HTTP."""


class NotThere(LinkError):
    """Nobody took the connection."""


class NotTrusted(LinkError):
    """The connection was taken, and its certificate was refused."""


class Closed(LinkError):
    """The connection ended before an answer began."""


class TooLong(Exception):
    """The answer is longer than is read."""


class Answer(NamedTuple):
    """`headers` by their names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Link(asyncio.Protocol):
    """One connection. The parser calls `on_…`."""

    def __init__(self, most: int) -> None:
        import httptools

        self.closed = False
        self.used_at = 0.0
        self._most = most
        self._parser = httptools.HttpResponseParser(self)
        self._broken: type[Exception] = httptools.HttpParserError
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._keep = True
        self._begin()

    def _begin(self) -> None:
        self._heard = 0
        self._in_body = False
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []

    async def ask(self, request: bytes, loop: asyncio.AbstractEventLoop) -> Answer:
        """Send a whole request and wait for its whole answer; where that is cut short, so is the connection."""
        assert self._transport is not None
        self._waiter = loop.create_future()
        self._transport.write(request)
        try:
            return await self._waiter
        except BaseException:
            self.cut()
            raise
        finally:
            self._waiter = None

    @property
    def kept(self) -> bool:
        """Whether the next request may be sent here."""
        return self._keep and not self.closed

    def cut(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    # -- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is none of asyncio's

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            self.cut()  # nobody has asked for it
            return
        self._heard += len(data)
        if not self._in_body and self._heard > MAX_HEAD_BYTES + len(data):
            self._fail(LinkError("the head of the answer does not end"))
            return
        try:
            self._parser.feed_data(data)
        except TooLong as problem:
            self._fail(problem)
        except self._broken as problem:
            cause = problem.__context__
            self._fail(cause if isinstance(cause, TooLong) else LinkError(f"no HTTP: {problem}"))

    def connection_lost(self, problem: Exception | None) -> None:
        self.closed = True
        if self._waiter is None or self._waiter.done():
            return
        if problem is None and self._in_body and not self._sized:
            self._keep = False
            self._answer()  # a body that ends with the connection
        elif not self._heard:
            self._fail(Closed(str(problem) if problem else "server disconnected"))
        else:
            self._fail(LinkError("the connection ended in the middle of an answer"))

    # -- called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            return
        self._in_body = True
        headers = self._headers
        self._sized = "content-length" in headers or "chunked" in headers.get("transfer-encoding", "")
        if int(headers.get("content-length", 0)) > self._most:
            raise TooLong

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)
        if self._heard > self._most and sum(map(len, self._parts)) > self._most:
            raise TooLong

    def on_message_complete(self) -> None:
        if not self._in_body:  # 100 Continue: the answer follows
            self._begin()
            return
        self._keep = self._parser.should_keep_alive()
        self._answer()

    def _answer(self) -> None:
        parts, headers, status = self._parts, self._headers, self._parser.get_status_code()
        self._begin()
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            if "content-encoding" in headers:
                body = unpacked(body, headers["content-encoding"], self._most)
        except (TooLong, LinkError) as problem:
            self._fail(problem)
        else:
            waiter.set_result(Answer(status, headers, body))

    def _fail(self, problem: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(problem)
        self.cut()


class Links:
    """All connections of a policy: as many as are asked for at once."""

    def __init__(self, headers: Mapping[str, str], *, most: int) -> None:
        """`headers` go with every request; an answer has `most` bytes, unpacked."""
        self._names = frozenset(headers)
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._most = most
        self._servers: dict[tuple[str, str, int], Server] = {}
        self._routes: dict[tuple[str, str], tuple[Server, bytes]] = {}

    def has(self, names: frozenset[str]) -> bool:
        """Whether one of these headers goes with every request."""
        return bool(self._names & names)

    def post(self, url: str, data: bytes) -> Awaitable[Answer]:
        server, head = self._routes.get(("POST", url)) or self._route("POST", url)
        return server.ask(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(data), data))

    def get(self, url: str) -> Awaitable[Answer]:
        server, head = self._routes.get(("GET", url)) or self._route("GET", url)
        return server.ask(head + b"\r\n")

    async def close(self) -> None:
        for server in self._servers.values():
            server.close()
        await asyncio.sleep(0)  # their transports take note

    def _route(self, method: str, url: str) -> tuple[Server, bytes]:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode()
        port = parts.port or (443 if parts.scheme == "https" else 80)
        key = parts.scheme, host, port
        if key not in self._servers:
            self._servers[key] = Server(*key, most=self._most)
        path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
        name = f"[{host}]" if ":" in host else host
        named = name if parts.port is None else f"{name}:{parts.port}"
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {named}\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\n"
            f"User-Agent: windrow\r\n{self._headers}"
        )
        self._routes[method, url] = route = self._servers[key], head.encode("latin-1")
        return route


class Server:
    """One server, and the connections to it that nobody uses just now."""

    def __init__(self, scheme: str, host: str, port: int, *, most: int) -> None:
        self._host = host
        self._port = port
        self._most = most
        self._tls = ssl.create_default_context() if scheme == "https" else None
        self._free: list[Link] = []
        self._places: asyncio.Future[list[Any]] | None = None
        self._places_until = 0.0

    async def ask(self, request: bytes) -> Answer:
        """A connection that ends without a word may have been closed before the request came: it is sent once more, on
        a new one."""
        loop = asyncio.get_running_loop()
        link = self._kept(loop) or await self._new(loop)
        try:
            answer = await link.ask(request, loop)
        except Closed:
            link = await self._new(loop)
            answer = await link.ask(request, loop)
        if link.kept:
            link.used_at = loop.time()
            self._free.append(link)
        else:
            link.cut()
        return answer

    def _kept(self, loop: asyncio.AbstractEventLoop) -> Link | None:
        while self._free:
            link = self._free.pop()
            if not link.closed:
                if loop.time() - link.used_at < IDLE_S:
                    return link
                link.cut()
        return None

    async def _new(self, loop: asyncio.AbstractEventLoop) -> Link:
        from aiohappyeyeballs import start_connection

        try:
            connected = await start_connection(await self._found(loop), happy_eyeballs_delay=HEAD_START_S)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name = self._host if self._tls is not None else None
            _, link = await loop.create_connection(
                lambda: Link(self._most), sock=connected, ssl=self._tls, server_hostname=name
            )
        except ssl.SSLError as problem:
            raise NotTrusted(getattr(problem, "verify_message", None) or str(problem)) from None
        except OSError as problem:
            self._places = None
            raise NotThere(
                f"cannot connect to {self._host}:{self._port} ({problem.strerror or problem})"
            ) from None
        return link

    async def _found(self, loop: asyncio.AbstractEventLoop) -> list[Any]:
        """The server's addresses; those who ask at once ask together."""
        if self._places is None or loop.time() > self._places_until or _failed(self._places):
            self._places_until = loop.time() + NAMES_S
            asked = loop.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
            )
            self._places = asyncio.ensure_future(asked)
        return await asyncio.shield(self._places)

    def close(self) -> None:
        while self._free:
            self._free.pop().cut()


def _failed(asked: asyncio.Future[list[Any]]) -> bool:
    return asked.done() and (asked.cancelled() or asked.exception() is not None)


def unpacked(body: bytes, how: str, most: int) -> bytes:
    """The body as it was before it was packed; TooLong where that has more than `most` bytes."""
    if how in ("", "identity"):
        return body
    if how not in ("gzip", "x-gzip", "deflate"):
        raise LinkError(f"the answer is packed as {how!r}, which was not asked for")
    raw = how == "deflate" and (len(body) < 2 or (body[0] << 8 | body[1]) % 31)
    unpack = zlib.decompressobj(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS | 32)
    try:
        whole = unpack.decompress(body, most + 1)
    except zlib.error as problem:
        raise LinkError(f"the answer cannot be unpacked: {problem}") from None
    if len(whole) > most:
        raise TooLong
    if not unpack.eof:
        raise LinkError("the answer ends in the middle")
    return whole
