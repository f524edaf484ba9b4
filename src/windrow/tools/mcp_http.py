"""An MCP server at a URL: the SDK's transport, with a bound on what one response may hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2  # which the SDK speaks HTTP with
from mcp.client.streamable_http import streamable_http_client

from windrow.tools.mcp_stdio import MAX_MESSAGE_BYTES

EVENTS = "text/event-stream"  # goes on for as long as the session; the SDK bounds each event


@asynccontextmanager
async def connect_http(url: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
    """Open the SDK's transport with these headers. It follows no redirect to another host, which would receive them."""
    patience = httpx2.Timeout(30.0, read=300.0)  # the SDK's own
    asked = {"Accept-Encoding": "identity", **headers}
    hooks = {"response": [_bound]}
    async with httpx2.AsyncClient(headers=asked, timeout=patience, event_hooks=hooks) as client:
        async with streamable_http_client(url, http_client=client) as streams:
            yield streams


async def _bound(response: httpx2.Response) -> None:
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    events = response.headers.get("content-type", "").lower().startswith(EVENTS)
    packed = response.headers.get("content-encoding", "identity") != "identity"
    response.stream = _BoundedStream(response.stream, bounded=not events, packed=packed)


class _BoundedStream(httpx2.AsyncByteStream):
    """The bytes of a response; httpx2.StreamError, which the SDK takes for a failed request, if they are too many.

    What was packed, though nobody asked for that, is refused: a few bytes can unfold to any number.
    """

    def __init__(self, stream: httpx2.AsyncByteStream, *, bounded: bool, packed: bool) -> None:
        self._stream = stream
        self._bounded = bounded
        self._packed = packed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._packed:
            raise httpx2.StreamError("the response is packed, which was not asked for")
        received = 0
        async for chunk in self._stream:
            received += len(chunk)
            if self._bounded and received > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError(f"the response has more than {MAX_MESSAGE_BYTES:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
