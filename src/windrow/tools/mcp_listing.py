"""The tools that an MCP server lists: bounded before they are looked at, then checked against what a policy can be shown."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import msgspec

from windrow.errors import ToolError
from windrow.records import Json
from windrow.tools.functions import NAME
from windrow.util.threads import in_thread

MAX_TOOLS = 1000  # of one server
MAX_PAGES = 100  # of one listing: a server may hand out new cursors for ever
MAX_LISTING_BYTES = 4 * 2**20
MAX_SCHEMA_BYTES = 2**18  # the check of one schema cannot be stopped half way
REMEMBERED = 10_000

_checked: set[bytes] = set()  # digests of schemas that are good: each episode lists the same ones again


class Failure(Protocol):
    """Makes the error that names the server."""

    def __call__(self, what: str, *, kind: str) -> ToolError: ...


class ListedTool(msgspec.Struct, frozen=True):
    name: str
    description: str
    schema: dict[str, Json]
    output_schema: dict[str, Json] | None


async def list_tools(client: Any, failure: Failure) -> list[ListedTool]:
    """Every tool of the server, page by page; ToolError if there are too many or one of them is not fit to be shown."""
    tools: list[ListedTool] = []
    size_bytes = 0
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        if len(tools) + len(page.tools) > MAX_TOOLS:
            raise failure(f"lists more than {MAX_TOOLS:,} tools", kind="mcp_list")
        for listed in page.tools:
            tool = ListedTool(
                listed.name, listed.description or "", listed.input_schema, listed.output_schema
            )
            size_bytes += await _check(tool, failure)
            if size_bytes > MAX_LISTING_BYTES:
                raise failure(f"lists tools of more than {MAX_LISTING_BYTES:,} bytes", kind="mcp_list")
            tools.append(tool)
        cursor = page.next_cursor
        if not cursor:
            return tools
    raise failure(f"lists its tools on more than {MAX_PAGES} pages", kind="mcp_list")


async def _check(tool: ListedTool, failure: Failure) -> int:
    """The size of a tool that a policy can be shown."""
    if not NAME.fullmatch(tool.name):
        raise failure(
            f"lists a tool called {tool.name!r:.100}; a name is 1 to 64 letters, digits, '_' and '-'",
            kind="mcp_schema",
        )
    sizes = [len(tool.description)]
    for schema in (tool.schema, tool.output_schema):
        try:
            text = msgspec.json.encode(schema)
        except (ValueError, OverflowError, RecursionError) as problem:
            raise failure(
                f"lists the tool {tool.name!r} with a schema that is not JSON: {problem}", kind="mcp_schema"
            ) from None
        if len(text) > MAX_SCHEMA_BYTES:
            raise failure(
                f"lists the tool {tool.name!r} with a schema of more than {MAX_SCHEMA_BYTES:,} bytes",
                kind="mcp_schema",
            )
        sizes.append(len(text))
        if schema is not None and (why := await _problem(text, schema)):
            raise failure(
                f"lists the tool {tool.name!r} with a schema that is none: {why:.200}", kind="mcp_schema"
            )
    return sum(sizes)


async def _problem(text: bytes, schema: Json) -> str | None:
    """What is wrong with a schema. It is looked at in a thread, once: that takes milliseconds."""
    digest = hashlib.sha256(text).digest()
    if digest in _checked:
        return None
    if problem := await in_thread(_schema_problem, schema):
        return problem
    if len(_checked) >= REMEMBERED:
        _checked.clear()
    _checked.add(digest)
    return None


def _schema_problem(schema: Json) -> str | None:
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as problem:
        return str(problem.message)
    except RecursionError:
        return "it is nested too deeply"
    return None
