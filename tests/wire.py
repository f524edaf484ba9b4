"""A server that answers with raw bytes, for what a proper server never does: silence, half a reply, a closed door.

    async with wire(lambda request: http(200, b"<html>")) as server:
        ... server.url ...

It runs on the test's own event loop; the sockets are real.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple


class WireRequest(NamedTuple):
    method: str
    path: str
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


# What to send before the connection is closed; None keeps it open and silent.
Handler = Callable[[WireRequest], bytes | None]


class WireServer:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"
        self.requests: list[WireRequest] = []

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


def serving(answer: bytes, *, model: str = "stub") -> Handler:
    """List the model, and answer every completion request with `answer`."""

    def handle(request: WireRequest) -> bytes:
        return http(200, {"data": [{"id": model}]}) if request.path.endswith("/models") else answer

    return handle


@asynccontextmanager
async def wire(handler: Handler) -> AsyncIterator[WireServer]:
    open_doors: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_doors.add(task)
        try:
            request = await _read(reader)
            server.requests.append(request)
            answer = handler(request)
            if answer is None:
                await asyncio.Event().wait()
            else:
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            open_doors.discard(task)
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server = WireServer(listening.sockets[0].getsockname()[1])
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
    return WireRequest(method, path, await reader.readexactly(int(lengths[0])) if lengths else b"")
