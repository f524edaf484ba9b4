"""An HTTP client, and servers that answer it with the bytes a test gives them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.raw_server import Deed, WireServer, wire
from windrow.policies.http_client import HttpClient, http_client

LIMIT = 1 << 20  # of a body
STATUS = b"HTTP/1.1 200 OK\r\n"
OK = STATUS + b"Content-Length: 2\r\n\r\nok"
EVIL = STATUS + b"Content-Length: 4\r\n\r\nevil"
CHUNKED = STATUS + b"Transfer-Encoding: chunked\r\n\r\n"
Answer = bytes | Deed | None


@asynccontextmanager
async def connected(url: str, headers: dict[str, str] | None = None) -> AsyncIterator[HttpClient]:
    client = http_client(url, headers or {}, max_body_bytes=LIMIT)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def scripted(*answers: Answer) -> AsyncIterator[tuple[HttpClient, WireServer]]:
    """A client, and a server that gives these answers one after another, on whichever connections it is asked."""
    script: Iterator[Answer] = iter(answers)
    async with wire(lambda request: next(script), keep_alive=True) as server, connected(server.url) as client:
        yield client, server


def in_parts(parts: Sequence[bytes]) -> Deed:
    """Send each part by itself, as far as the network allows."""

    async def deed(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)

    return deed


def then_close(sent: bytes) -> Deed:
    async def deed(writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        writer.close()

    return deed


CERTIFICATES = Path(__file__).parents[1] / "faults" / "certificate"


def serving_as(name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / f"{name}.pem", CERTIFICATES / f"{name}.key")
    return context
