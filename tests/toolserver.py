"""MCP servers of the SDK's own making that misbehave where a test asks for it: `python -m tests.toolserver HOW [PORT]`.

`good` adds, fails, dies, hangs and floods on request; the others are wrong from the start.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from mcp.server import MCPServer

server = MCPServer("test")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def pid() -> str:
    """The process that serves."""
    return str(os.getpid())


@server.tool()
def fail() -> str:
    raise ValueError("no such record")


@server.tool()
def die() -> str:
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(1)


@server.tool()
async def hang() -> str:
    await asyncio.Event().wait()
    return ""


@server.tool()
def flood(chars: int) -> str:
    return "x" * chars


def listing(schema: object) -> None:
    """A server that lists one tool, `t`, with this schema for its arguments."""
    from mcp.server.lowlevel.server import Server
    from mcp.types import ListToolsResult, Tool

    async def list_tools(*_: object) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="t", input_schema=schema)])

    low = Server("liar", on_list_tools=list_tools)

    async def run() -> None:
        from mcp.server.stdio import stdio_server

        async with stdio_server() as (read, write):
            await low.run(read, write, low.create_initialization_options())

    asyncio.run(run())


def main(how: str, port: str | None = None) -> None:
    if how == "silent":
        time.sleep(600)
    elif how == "broken":
        sys.exit("the licence has expired")
    elif how == "babbling":
        while True:
            sys.stdout.write("x" * 2**20)
    elif how == "no_schema":
        listing({"type": "object", "properties": {"a": {"type": "quantity"}}})
    elif how == "no_object":
        listing({"type": "string"})
    elif port is not None:
        server.run("streamable-http", port=int(port))
    else:
        server.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
