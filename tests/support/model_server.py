"""A scripted model server: the real wire, no model.

It speaks the OpenAI dialect over real HTTP on 127.0.0.1, from a thread of its own, so that a test and the processes
that the test starts can both use it. What it answers is a function that the test gives:

    server = ModelServer(lambda body, n: "42")                      # chat content
    server = ModelServer(lambda body, n: {"choices": [...]})        # a whole reply, sent as it is
    server = ModelServer(lambda body, n: (429, {"Retry-After": "1"}, {"error": {"message": "slow down"}}))

`n` counts the completion requests from 0, in the order in which they came. The function runs in a worker thread: it may
block, and what it raises is a 500 that names it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

Raw = tuple[int, Mapping[str, str], "bytes | str | dict[str, Any]"]
Answer = str | dict[str, Any] | Raw
Reply = Callable[[dict[str, Any], int], Answer]


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """Write one JSON line a row and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return path


def chat_reply(body: dict[str, Any], content: str, n: int) -> dict[str, Any]:
    """The whole chat completion whose only choice says `content`."""
    message = {"role": "assistant", "content": content}
    sent = sum(len(str(sent.get("content") or "").split()) for sent in body.get("messages", []))
    said = len(content.split())
    return {
        "id": f"chatcmpl-{n}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.get("model", "stub"),
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": sent, "completion_tokens": said, "total_tokens": sent + said},
    }


class ModelServer:
    """Listens once made; `stop` (or leaving it as a context manager) closes every connection and ends the thread."""

    def __init__(
        self,
        reply: Reply | str = "42",
        *,
        models: Iterable[str] = ("stub",),
        api_key: str | None = None,
        latency_s: float = 0.0,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.reply: Reply = (lambda body, n: reply) if isinstance(reply, str) else reply
        self.models = list(models)
        self.api_key = api_key
        self.latency_s = latency_s
        self.requests: Counter[str] = Counter()  # by path, refused ones too
        self.bodies: list[dict[str, Any]] = []  # of completion requests that were let in
        self.headers: list[dict[str, str]] = []  # of the same requests
        self.in_flight = 0
        self.peak_in_flight = 0
        self.port = port
        self.gone = (
            threading.Event()
        )  # every connection is closed; what is never to be answered waits for this
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._problem: BaseException | None = None
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="model-server", daemon=True)
        self._thread.start()
        if not self._ready.wait(30):
            raise RuntimeError("the model server did not come up in 30 s")
        if self._problem is not None:
            raise self._problem

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/v1"

    @property
    def completions(self) -> int:
        """How many completion requests were let in."""
        return len(self.bodies)

    def stop(self) -> None:
        """End the server; a second call does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(30)

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as problem:
            self._problem = problem
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            self._ready.set()

    async def _serve(self) -> None:
        app = web.Application(middlewares=[self._door], client_max_size=2**28)
        app.router.add_get("/v1/models", self._list_models)
        for path in ("chat/completions", "completions", "messages", "responses"):
            app.router.add_post(f"/v1/{path}", self._complete)
        # A request whose client went away is cancelled; at the end nothing is waited for.
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", self.port, backlog=1024, ssl_context=self._tls)
            await site.start()
            self.port = runner.addresses[0][1]
            self._ready.set()
            await self._stopping.wait()
        finally:
            await runner.cleanup()
            self.gone.set()

    @web.middleware
    async def _door(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Count the request, and turn it away without the key."""
        self.requests[request.path] += 1
        if self.api_key is not None and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            error = {"message": "Incorrect API key provided", "type": "invalid_request_error"}
            return web.json_response({"error": {**error, "code": "invalid_api_key"}}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _list_models(self, request: web.Request) -> web.Response:
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "tests"} for name in self.models]
        return web.json_response({"object": "list", "data": rows})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        n = len(self.bodies)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        try:
            if self.latency_s:
                await asyncio.sleep(self.latency_s)
            answer = await asyncio.to_thread(self.reply, body, n)
        except Exception as problem:
            error = {"message": f"the test's reply() raised {problem!r}", "type": "server_error"}
            return web.json_response({"error": error}, status=500)
        finally:
            self.in_flight -= 1
        return _response(body, answer, n)


def _response(body: dict[str, Any], answer: Answer, n: int) -> web.Response:
    if isinstance(answer, str):
        return web.json_response(chat_reply(body, answer, n))
    if isinstance(answer, dict):
        return web.json_response(answer)
    status, headers, content = answer
    if isinstance(content, dict):
        return web.json_response(content, status=status, headers=headers)
    raw = content.encode() if isinstance(content, str) else content
    return web.Response(status=status, headers=headers, body=raw)
