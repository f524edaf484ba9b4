"""MCP servers of the SDK's own making that misbehave where a test asks for it: `python -m tests.support.mcp_server HOW [PORT]`.

`good` adds, fails, dies, hangs and floods on request; the others are wrong from the start.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MANY = "a" * 40 + "!"


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
    serve_by_hand([{"name": "t", "inputSchema": schema, "outputSchema": output}])


def stalling() -> None:
    """By hand: output schemas that take for ever to compare with the answer, which is {"n": MANY} for each tool."""
    doubled = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    schemas: dict[str, dict[str, object]] = {
        "pattern": {"properties": {"n": {"pattern": "^(a+)+$"}}},
        "doubled": {"$ref": "#/$defs/d0", "$defs": {**doubled, "d60": {}}},
        "fetched": {"$ref": "http://127.0.0.1:9/schema.json"},
        "right": {"properties": {"n": {"enum": [MANY]}}, "required": ["n"], "additionalProperties": False},
    }
    serve_by_hand(
        [
            {"name": name, "inputSchema": OBJECT, "outputSchema": {"type": "object", **schema}}
            for name, schema in schemas.items()
        ]
    )


def same(count: int, schema: dict[str, object]) -> list[dict[str, object]]:
    return [{"name": f"t{n}", "inputSchema": schema} for n in range(count)]


def serve_by_hand(tools: list[dict[str, object]], *, endless: bool = False) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            print(json.dumps(answer_by_hand(request, tools, endless=endless)), flush=True)


def deaf() -> None:
    """By hand: reads nothing any more once it has listed its tools."""
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            print(json.dumps(answer_by_hand(request, same(1, OBJECT), endless=False)), flush=True)
        if request["method"] == "tools/list":
            time.sleep(600)


def serve_http_by_hand(port: int, tools: list[dict[str, object]], *, endless: bool = False) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            told = "id" in request
            body = json.dumps(answer_by_hand(request, tools, endless=endless)).encode() if told else b""
            self.send_response(200 if told else 202)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send_error(405)

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def answer_by_hand(
    request: dict[str, Any], tools: list[dict[str, object]], *, endless: bool
) -> dict[str, object]:
    answers: dict[str, dict[str, object]] = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "by hand", "version": "1"},
        },
        "tools/list": {"tools": tools, **({"nextCursor": str(time.monotonic())} if endless else {})},
        "tools/call": {"content": [], "structuredContent": {"n": MANY}},
    }
    answer: dict[str, object] = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] in answers:
        return {**answer, "result": answers[request["method"]]}
    return {**answer, "error": {"code": -32601, "message": "no such method"}}


def leave_behind(note: str) -> None:
    """Return once there is a daemon in a session of its own, with no stream of this process. `note` holds its number."""
    readable, writable = os.pipe()
    if os.fork():
        os.read(readable, 1)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    with open(note, "w", encoding="utf-8") as file:
        file.write(str(os.getpid()))
    os.write(writable, b"x")
    signal.alarm(300)  # if nobody ends it
    while True:
        signal.pause()


OBJECT: dict[str, object] = {"type": "object"}
LISTINGS = {
    "crowded": (20_000, OBJECT),
    "endless": (0, OBJECT),
    "large": (1, {**OBJECT, "description": "x" * 300_000}),
    "larger": (30, {**OBJECT, "description": "x" * 200_000}),
    "deep": (1, functools.reduce(lambda inner, _: {**OBJECT, "not": inner}, range(150), OBJECT)),
    "full": (1000, {**OBJECT, "properties": {"a": {"type": "integer"}}}),
    "unbounded": (30, {**OBJECT, "description": "x" * 1_000_000}),
}


def main(how: str, port: str | None = None) -> None:
    """`port` is a file for one that leaves a process behind."""
    if how == "leaving" and port is not None:
        leave_behind(port)
        serve_by_hand(same(1, OBJECT))
        time.sleep(300)  # the end of its input is no end to it
    elif how in LISTINGS and port is not None:
        serve_http_by_hand(int(port), same(*LISTINGS[how]), endless=how == "endless")
    elif how in LISTINGS:
        serve_by_hand(same(*LISTINGS[how]), endless=how == "endless")
    else:
        misbehave(how, port)


def misbehave(how: str, port: str | None) -> None:
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
    elif how == "deaf":
        deaf()
    elif how == "stalling":
        stalling()
    elif how == "liar":
        liar({"type": "object"})
    elif port is not None:
        good().run("streamable-http", port=int(port))
    else:
        good().run()


if __name__ == "__main__":
    main(*sys.argv[1:])
