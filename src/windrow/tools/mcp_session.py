"""One session with an MCP server: a process that speaks over its standard streams, or a streamable HTTP endpoint.

A task of its own holds the session open, so that one task may open it and another may close it. A server that dies,
hangs, floods or lies about its schemas raises ToolError.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

import msgspec

from windrow.errors import ToolError
from windrow.records import Json
from windrow.tools.base import Pictured, Tool, ToolImage
from windrow.tools.images import MAX_IMAGE_BYTES, MAX_IMAGES, read_image
from windrow.tools.mcp_listing import ListedTool, list_tools
from windrow.tools.mcp_results import mismatch

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
    """A server's answer to a call: its content parts as text, the images among them, and its structured content."""

    texts: tuple[str, ...]
    images: tuple[ToolImage, ...] = ()
    structured: Json = None
    failed: bool = False

    @property
    def text(self) -> str:
        if self.texts or self.images or self.structured is None:
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
        self._output_schemas: dict[str, dict[str, Json]] = {}
        self._task: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[Any]] = set()
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
                self._client.session.validate_tool_result = _leave_unchecked
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
            from windrow.tools.mcp_http import connect_http

            return connect_http(self._server.url, self._server.headers)
        from windrow.tools.mcp_stdio import ServerProcess

        self._process = ServerProcess(self._server.command, self._server.env, self._server.cwd)
        return self._process.connect()

    async def _list(self) -> tuple[Tool, ...]:
        listed = await list_tools(self._client, self._failure)
        self._output_schemas = {tool.name: tool.output_schema for tool in listed if tool.output_schema}
        return tuple(map(self._tool, listed))

    def _tool(self, listed: ListedTool) -> Tool:
        name = listed.name

        async def call(**arguments: Json) -> str | Pictured:
            answer = await self.call(name, arguments)
            if answer.failed:
                raise ToolError(answer.text or f"the tool {name!r} failed and did not say why")
            return Pictured(answer.text, answer.images) if answer.images else answer.text

        return Tool(name=name, description=listed.description, parameters=listed.schema, call=call)

    async def call(self, name: str, arguments: dict[str, Json]) -> McpAnswer:
        """Return the server's answer, even if the tool failed; raise ToolError if there is no answer."""
        if self._ended:
            raise self._failure("has ended", kind="mcp_closed")
        try:
            result = await self._result(name, arguments)
        except asyncio.CancelledError:
            self._suspect = True
            raise
        except Exception as problem:
            raise self._failure(f"failed in {name!r}: {_why(problem)}", kind="mcp_call") from None
        schema = None if result.is_error else self._output_schemas.get(name)
        if schema is not None and (why := await mismatch(result.structured_content, schema)):
            raise self._failure(
                f"failed in {name!r}: its answer is not what it declares: {why:.500}", kind="mcp_call"
            )
        parts = _parts(result.content)
        return McpAnswer(
            texts=tuple(part for part in parts if isinstance(part, str)),
            images=tuple(part for part in parts if isinstance(part, ToolImage)),
            structured=result.structured_content,
            failed=bool(result.is_error),
        )

    async def prompt(self, name: str, arguments: dict[str, str]) -> str:
        """Return the text of the first message of a prompt; raise ToolError if there is none."""
        result = await self._asked(f"the prompt {name!r}", lambda: self._client.get_prompt(name, arguments))
        return "".join(_text(message.content) for message in result.messages[:1])

    async def resource(self, uri: str) -> str:
        """Return the text of a resource; raise ToolError if there is none."""
        result = await self._asked(f"the resource {uri!r}", lambda: self._client.read_resource(uri))
        return "".join(str(getattr(content, "text", "")) for content in result.contents[:1])

    async def _asked(self, what: str, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if self._ended:
            raise self._failure("has ended", kind="mcp_closed")
        try:
            return await self._in_task(ask())
        except Exception as problem:
            raise self._failure(f"failed in {what}: {_why(problem)}", kind="mcp_call") from None

    async def _result(self, name: str, arguments: dict[str, Json]) -> Any:
        return await self._in_task(self._client.call_tool(name, arguments))

    async def _in_task(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await in a task of its own. Once cancelled, the SDK tells the server so, which may take it seconds."""
        task = asyncio.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._forget)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        return task.result()

    def _forget(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # nobody may be waiting

    def _failure(self, what: str, *, kind: str) -> ToolError:
        words = self._process.last_words if self._process is not None else ""
        return ToolError(
            f"{self._label} {what}" + (f" (it said: {words})" if words else ""), kind=kind, retryable=True
        )


async def _leave_unchecked(name: str, result: Any) -> None:
    """Takes the place of the SDK's check of an answer, which has no bounds and runs on the loop; `mismatch` is ours."""


def _parts(content: Any) -> list[str | ToolImage]:
    """Return the content, in its order; an image that is not within the bounds is text that names it."""
    parts: list[str | ToolImage] = []
    room = MAX_IMAGES
    for part in content:
        image = read_image(part.data) if part.type == "image" and room else None
        room -= image is not None
        parts.append(_text(part) if image is None else image)
    return parts


def _text(part: Any) -> str:
    """Return a content part as text; other parts are named, not carried."""
    if part.type == "text":
        return str(part.text)
    if part.type == "resource":
        resource = part.resource
        return str(resource.text) if hasattr(resource, "text") else f"[{resource.uri}: not text]"
    if part.type == "resource_link":
        return f"[{part.name}: {part.uri}]"
    if part.type == "image":
        return f"[image, {part.mime_type}: not shown (up to {MAX_IMAGES} of {MAX_IMAGE_BYTES >> 20} MiB are: PNG, JPEG, GIF, WebP)]"
    return f"[{part.type}, {getattr(part, 'mime_type', 'unknown')}: not text]"


def _cause(problem: BaseException) -> BaseException:
    """Return the first real problem in an exception group."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


def _why(problem: BaseException) -> str:
    problem = _cause(problem)
    return str(problem) or type(problem).__name__
