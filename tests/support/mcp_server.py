"""MCP servers of the SDK's own making that misbehave where a test asks for it: `python -m tests.support.mcp_server HOW [PORT]`.

`good` adds, fails, dies, hangs and floods on request; the others are wrong from the start.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def pid() -> str:
    """The process that serves."""
    return str(os.getpid())


def fail() -> str:
    raise ValueError("no such record")


def die() -> str:
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(1)


async def hang() -> str:
    await asyncio.Event().wait()
    return ""


def flood(chars: int) -> str:
    return "x" * chars


def good() -> Any:
    """A server of the SDK's. Those that are wrong from the start do without: it takes its time to import."""
    from mcp.server import MCPServer

    server = MCPServer("test")
    for tool in (add, pid, fail, die, hang, flood):
        server.tool()(tool)
    return server


def liar(schema: dict[str, object]) -> None:
    """By hand, since the SDK's own server would not send it: one tool `t` whose results are not what it declares."""
    output = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answers = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "liar", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "t", "inputSchema": schema, "outputSchema": output}]},
        "tools/call": {"content": [], "structuredContent": {"n": "many"}},
    }
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        answer = {"jsonrpc": "2.0", "id": request["id"]}
        if request["method"] in answers:
            answer["result"] = answers[request["method"]]
        else:
            answer["error"] = {"code": -32601, "message": "no such method"}
        print(json.dumps(answer), flush=True)


def main(how: str, port: str | None = None) -> None:
    if how == "silent":
        time.sleep(600)
    elif how == "broken":
        sys.exit("the licence has expired")
    elif how == "babbling":
        while True:
            sys.stdout.write("x" * 2**20)
    elif how == "no_schema":
        liar({"type": "object", "properties": {"a": {"type": "quantity"}}})
    elif how == "no_object":
        liar({"type": "string"})
    elif how == "liar":
        liar({"type": "object"})
    elif port is not None:
        good().run("streamable-http", port=int(port))
    else:
        good().run()


if __name__ == "__main__":
    main(*sys.argv[1:])
