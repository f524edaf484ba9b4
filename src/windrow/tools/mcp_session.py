"""One session with an MCP server: a process that speaks over its standard streams, or a streamable HTTP endpoint.

A task of its own holds the session open, so that one task may open it and another may close it. A server that dies,
hangs, floods or lies about its schemas raises ToolError.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

import msgspec

from windrow.errors import ToolError
from windrow.records import Json
from windrow.tools.base import Tool
from windrow.tools.functions import NAME

MAX_TOOLS = 1000  # of one server; a listing that goes on and on is cut off
CLOSE_TIMEOUT_S = 10.0

# Its failures are in the records; they are not for the terminal.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a server: a command to start, or a URL. `name` represents it in the fingerprint."""

    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}  # sent with each request to the URL
    name: str | None = None

    @property
    def label(self) -> str:
        return self.name or self.url or " ".join(self.command)

    def identity(self) -> Json:
        """Return the name, or else the command without the directories of its files, or the URL's host and path."""
        if self.name is not None:
            return {"mcp": self.name}
        if self.url is not None:
            parts = urlsplit(self.url)
            return {"mcp": f"{parts.hostname}{parts.path}"}
        return {"mcp": [PurePath(part).name if part.startswith("/") else part for part in self.command]}


class McpAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A server's answer to a call: its content parts as text, and its structured content."""

    texts: tuple[str, ...]
    structured: Json = None
    failed: bool = False

    @property
    def text(self) -> str:
        if self.texts or self.structured is None:
            return "\n".join(self.texts)
        return msgspec.json.encode(self.structured).decode()


class McpSession:
    """A session; one task opens and closes it, as the SDK requires."""

    def __init__(self, server: McpServer, label: str) -> None:
        self._server = server
        self._label = label
        self._client: Any = None
        self._ended = False
        self._suspect = False  # a call was given up: the server may hang for good
        self._leave = asyncio.Event()
        self._ready: asyncio.Future[tuple[Tool, ...]] = asyncio.get_running_loop().create_future()
        self._process: Any = None
        self._task: asyncio.Task[None] | None = None
        self.tools: tuple[Tool, ...] = ()

    async def start(self, timeout_s: float) -> None:
        """Connect and list the tools, or raise ToolError with the server's last words."""
        self._task = asyncio.create_task(self._hold())
        try:
            await asyncio.wait({self._ready}, timeout=timeout_s)
            if not self._ready.done():
                raise self._failure(f"did not give its tools within {timeout_s:g} s", kind="mcp_timeout")
            self.tools = self._ready.result()
        except BaseException:
            self._task.cancel()
            await self.close()
            raise

    async def listed(self, timeout_s: float) -> tuple[Tool, ...]:
        """Return the tools that the server lists now; raise ToolError if it has failed."""
        if self._ended or self._suspect:
            raise self._failure("has failed", kind="mcp_closed")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._list()
        except ToolError:
            raise
        except Exception as problem:
            raise self._failure(f"does not list its tools: {_why(problem)}", kind="mcp_list") from None

    async def close(self) -> None:
        """End the session and the server; a server that does not end in time is cancelled, then abandoned."""
        self._leave.set()
        if self._task is None:
            return
        for _ in range(2):
            await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT_S)
            if self._task.done():
                return
            self._task.cancel()

    async def _hold(self) -> None:
        from mcp import Client

        try:
            async with Client(self._target(), cache=None, mode="auto") as self._client:
                tools = await self._list()
                if not self._ready.done():
                    self._ready.set_result(tools)
                await self._leave.wait()
        except BaseException as problem:
            if not self._ready.done():
                cause = _cause(problem)
                failure = self._failure(f"does not start: {_why(cause)}", kind="mcp_start")
                self._ready.set_exception(cause if isinstance(cause, ToolError) else failure)
                self._ready.exception()  # nobody may be waiting
            if not isinstance(problem, Exception | asyncio.CancelledError):
                raise
        finally:
            self._ended = True

    def _target(self) -> Any:
        if self._server.url is not None:
            return _http(self._server.url, self._server.headers) if self._server.headers else self._server.url
        from windrow.tools.mcp_stdio import ServerProcess

        self._process = ServerProcess(self._server.command, self._server.env, self._server.cwd)
        return self._process.connect()

    async def _list(self) -> tuple[Tool, ...]:
        tools: list[Tool] = []
        cursor: str | None = None
        while True:
            page = await self._client.list_tools(cursor=cursor)
            tools += [self._tool(listed) for listed in page.tools]
            if len(tools) > MAX_TOOLS:
                raise self._failure(f"lists more than {MAX_TOOLS} tools", kind="mcp_list")
            cursor = page.next_cursor
            if not cursor:
                return tuple(tools)

    def _tool(self, listed: Any) -> Tool:
        """Return a listed tool, checked against the form that a policy can be shown."""
        from jsonschema import Draft202012Validator, SchemaError

        name, schema = listed.name, listed.input_schema
        if not NAME.fullmatch(name):
            raise self._failure(
                f"lists a tool called {name!r:.100}; a name is 1 to 64 letters, digits, '_' and '-'",
                kind="mcp_schema",
            )
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as problem:
            raise self._failure(
                f"lists the tool {name!r} with a schema that is none: {problem.message:.200}",
                kind="mcp_schema",
            ) from None

        async def call(**arguments: Json) -> str:
            answer = await self.call(name, arguments)
            if answer.failed:
                raise ToolError(answer.text or f"the tool {name!r} failed and did not say why")
            return answer.text

        return Tool(name=name, description=listed.description or "", parameters=schema, call=call)

    async def call(self, name: str, arguments: dict[str, Json]) -> McpAnswer:
        """Return the server's answer, even if the tool failed; raise ToolError if there is no answer."""
        if self._ended:
            raise self._failure("has ended", kind="mcp_closed")
        try:
            result = await self._client.call_tool(name, arguments)
        except asyncio.CancelledError:
            self._suspect = True
            raise
        except Exception as problem:
            raise self._failure(f"failed in {name!r}: {_why(problem)}", kind="mcp_call") from None
        return McpAnswer(
            texts=tuple(_text(part) for part in result.content),
            structured=result.structured_content,
            failed=bool(result.is_error),
        )

    def _failure(self, what: str, *, kind: str) -> ToolError:
        words = self._process.last_words if self._process is not None else ""
        return ToolError(
            f"{self._label} {what}" + (f" (it said: {words})" if words else ""), kind=kind, retryable=True
        )


@asynccontextmanager
async def _http(url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    """Open the SDK's transport with these headers. It follows no redirect to another host, which would receive them."""
    import httpx2  # which the SDK speaks HTTP with
    from mcp.client.streamable_http import streamable_http_client

    patience = httpx2.Timeout(30.0, read=300.0)  # the SDK's own
    async with httpx2.AsyncClient(headers=headers, timeout=patience) as client:
        async with streamable_http_client(url, http_client=client) as streams:
            yield streams


def _text(part: Any) -> str:
    """Return a content part as text; other parts are named, not carried."""
    if part.type == "text":
        return str(part.text)
    if part.type == "resource":
        resource = part.resource
        return str(resource.text) if hasattr(resource, "text") else f"[{resource.uri}: not text]"
    if part.type == "resource_link":
        return f"[{part.name}: {part.uri}]"
    return f"[{part.type}, {getattr(part, 'mime_type', 'unknown')}: not text]"


def _cause(problem: BaseException) -> BaseException:
    """Return the first real problem in an exception group."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


def _why(problem: BaseException) -> str:
    problem = _cause(problem)
    return str(problem) or type(problem).__name__
