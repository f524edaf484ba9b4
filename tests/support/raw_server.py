"""A server that answers with raw bytes, for what a proper server never does: silence, half a reply, a closed door.

    async with wire(lambda request: http(200, b"<html>")) as server:
        ... server.url ...

It runs on the test's own event loop; the sockets are real. `wired` is the same on a thread of its own, for commands.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple


class WireRequest(NamedTuple):
    method: str
    path: str
    body: bytes
    head: str = ""  # all lines before the body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


# What is done with an open connection before it is closed.
Deed = Callable[[asyncio.StreamWriter], Awaitable[None]]
# What to send before the connection is closed, or what to do; None keeps it open and silent.
Handler = Callable[[WireRequest], "bytes | Deed | None"]


class WireServer:
    def __init__(self, port: int, host: str = "127.0.0.1", scheme: str = "http") -> None:
        self.port = port
        self.url = f"{scheme}://{host}:{port}/v1"
        self.requests: list[WireRequest] = []
        self.connections = 0
        self.open = 0  # connections that neither side has closed

    def count(self, ending: str) -> int:
        """How many requests came for a path with this ending."""
        return sum(request.path.endswith(ending) for request in self.requests)


def http(status: int, body: bytes | dict[str, Any] = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """A whole HTTP reply."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = "application/json" if isinstance(body, dict) else "text/plain"
    fields = {
        "Content-Length": str(len(data)),
        "Content-Type": kind,
        "Connection": "close",
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Told\r\n{head}\r\n".encode() + data


def completion(content: str | None, **message: Any) -> dict[str, Any]:
    """A chat completion with one choice; `finish_reason` may be among the message's fields."""
    finish = message.pop("finish_reason", "stop")
    choice = {"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    return {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}, "model": "stub"}


def resetting(sent: bytes = b"") -> Deed:
    """Send this much, then reset the connection."""

    async def deed(writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        reset = struct.pack("ii", 1, 0)  # SO_LINGER without time: closing is a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()

    return deed


def dripping(sent: bytes, *, pause_s: float) -> Deed:
    """Send this byte by byte."""

    async def deed(writer: asyncio.StreamWriter) -> None:
        for byte in sent:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(pause_s)

    return deed


def serving(answer: bytes | Deed, *, model: str = "stub") -> Handler:
    """List the model, and answer every completion request with `answer`."""

    def handle(request: WireRequest) -> bytes | Deed:
        return http(200, {"data": [{"id": model}]}) if request.path.endswith("/models") else answer

    return handle


@asynccontextmanager
async def wire(
    handler: Handler,
    *,
    keep_alive: bool = False,
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[WireServer]:
    """`keep_alive` reads one request after another from a connection, as long as the client sends any."""
    open_doors: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_doors.add(task)
        server.connections += 1
        server.open += 1
        try:
            while True:
                request = await _read(reader)
                server.requests.append(request)
                answer = handler(request)
                if answer is None:
                    await reader.read()  # until the client closes it
                    break
                if isinstance(answer, bytes):
                    writer.write(answer)
                    await writer.drain()
                else:
                    await answer(writer)
                if not keep_alive:
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            open_doors.discard(task)
            server.open -= 1
            writer.close()

    listening = await asyncio.start_server(serve, host.strip("[]"), 0, ssl=tls)
    server = WireServer(listening.sockets[0].getsockname()[1], host, "http" if tls is None else "https")
    try:
        yield server
    finally:
        listening.close()
        for task in list(open_doors):
            task.cancel()
        if open_doors:
            await asyncio.wait(list(open_doors), timeout=5)


async def _read(reader: asyncio.StreamReader) -> WireRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *fields = head.strip().split("\r\n")
    lengths = [field.partition(":")[2] for field in fields if field.lower().startswith("content-length:")]
    method, path, _ = first.split(" ", 2)
    return WireRequest(method, path, await reader.readexactly(int(lengths[0])) if lengths else b"", head)


@contextmanager
def wired(handler: Handler, **options: Any) -> Iterator[WireServer]:
    """`wire` on a thread of its own; the handler runs there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="wire", daemon=True)
    thread.start()
    serving = wire(handler, **options)
    try:
        yield asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
