"""The lean client: kept-alive HTTP/1.1 connections to one server, as many as there are requests at once."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Mapping
from typing import Any

from aiohappyeyeballs import start_connection

from windrow.policies.http_client.base import CertificateError, ConnectError, HttpError, Response, TlsError
from windrow.policies.http_client.connection import Connection
from windrow.policies.http_client.requests import Origin, header_lines, origin_of, request_head
from windrow.policies.http_client.tls import tls_context

MAX_IDLE_S = 15.0  # servers close idle connections: one that was idle for longer is not reused
MAX_LOOKUP_AGE_S = 300.0
NEXT_ADDRESS_S = 0.25  # an address that has not answered by then competes with the next one


class DirectClient:
    """An `HttpClient` without proxies. It never sends a request twice."""

    def __init__(self, base_url: str, headers: Mapping[str, str], *, max_body_bytes: int) -> None:
        self._origin = origin_of(base_url)
        self._tls = tls_context() if self._origin.tls else None
        self._headers = header_lines(headers)
        self._heads: dict[tuple[str, str], bytes] = {}
        self._max_body_bytes = max_body_bytes
        self._addresses = Addresses(self._origin)
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []  # the one that was used last is last
        self._closed = False

    def post(self, url: str, body: bytes, *, new_connection: bool = False) -> Awaitable[Response]:
        head = self._heads.get(("POST", url)) or self._head("POST", url)
        return self._send(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body), new_connection)

    def get(self, url: str, *, new_connection: bool = False) -> Awaitable[Response]:
        head = self._heads.get(("GET", url)) or self._head("GET", url)
        return self._send(head + b"\r\n", new_connection)

    async def close(self) -> None:
        self._closed = True
        self._addresses.close()
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)  # the loop tells the connections

    def _head(self, method: str, url: str) -> bytes:
        assert origin_of(url) == self._origin
        self._heads[method, url] = head = request_head(method, url, self._headers)
        return head

    async def _send(self, request: bytes, new_connection: bool) -> Response:
        loop = asyncio.get_running_loop()
        connection = None if new_connection else self._idle_connection(loop.time())
        if connection is None:
            connection = await self._connect(loop)
        pending = connection.request(request, loop)
        del request  # thousands may wait for their responses, and prompts are long
        try:
            response = await pending
        except BaseException:
            connection.abort()
            raise
        if connection.reusable:
            connection.idle_since = loop.time()
            self._idle.append(connection)
        else:
            connection.abort()
        return response

    def _idle_connection(self, now: float) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since > MAX_IDLE_S:
                connection.abort()
            elif not connection.closed:
                return connection
        return None

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> Connection:
        origin = self._origin
        try:
            target = await self._target(loop)
            _, connection = await loop.create_connection(
                self._connection,
                **target,
                ssl=self._tls,
                server_hostname=origin.host if self._tls is not None else None,
            )
        except ssl.SSLCertVerificationError as problem:
            raise CertificateError(str(problem)) from None
        except ssl.SSLError as problem:
            raise TlsError(f"no TLS with {origin} ({problem})") from None
        except HttpError:
            raise
        except (OSError, RuntimeError) as problem:  # uvloop raises either
            self._addresses.forget()
            raise ConnectError(f"cannot connect to {origin} ({_reason(problem)})") from None
        if self._closed:
            connection.abort()
            raise HttpError("the client is closed")
        if not connection.closed:
            self._open.add(connection)
        return connection

    async def _target(self, loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
        """Where to connect: the server's only address, or whichever of them has taken a connection first."""
        addresses = await self._addresses.look_up(loop)
        if len(addresses) == 1 and addresses[0][0] == socket.AF_INET:
            host, port = addresses[0][4]
            return {"host": host, "port": port}  # the loop connects at half the CPU of a race
        return {"sock": await start_connection(addresses, happy_eyeballs_delay=NEXT_ADDRESS_S)}

    def _connection(self) -> Connection:
        return Connection(self._max_body_bytes, self._open.discard)


class Addresses:
    """The addresses of a server. Those who ask at once share one lookup, and its result is used for a while."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._lookup: asyncio.Task[list[Any]] | None = None
        self._valid_until = 0.0

    async def look_up(self, loop: asyncio.AbstractEventLoop) -> list[Any]:
        lookup = self._lookup
        if lookup is None or loop.time() > self._valid_until:
            self._lookup = lookup = loop.create_task(self._ask(loop))
            lookup.add_done_callback(_take_note)
            self._valid_until = loop.time() + MAX_LOOKUP_AGE_S
        try:
            return await asyncio.shield(lookup)  # who stops waiting leaves it to the others
        except asyncio.CancelledError:
            if lookup.cancelled():
                raise HttpError("the client is closed") from None
            raise

    async def _ask(self, loop: asyncio.AbstractEventLoop) -> list[Any]:
        return await loop.getaddrinfo(self._origin.host, self._origin.port, type=socket.SOCK_STREAM)

    def forget(self) -> None:
        self._lookup = None

    def close(self) -> None:
        if self._lookup is not None:
            self._lookup.cancel()


def _take_note(lookup: asyncio.Task[list[Any]]) -> None:
    """A failure is known, also where nobody waits for the lookup any more."""
    if not lookup.cancelled():
        lookup.exception()


def _reason(problem: OSError | RuntimeError) -> str:
    if isinstance(problem, socket.gaierror) or not isinstance(problem, OSError) or not problem.errno:
        return str(getattr(problem, "strerror", None) or problem)
    return os.strerror(problem.errno)
