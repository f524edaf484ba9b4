"""An MCP server as a HUD task uses one, which grades, fails and tells what it was given as a row asks: `python -m tests.support.hud_server [PORT]`."""

from __future__ import annotations

import base64
import os
import sys
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ImageContent, TextContent

from tests.support.image_env import picture

server = MCPServer("world")
said: list[str] = []


@server.tool()
def setup(scene: str = "") -> str:
    said.append(f"setup {scene}")
    if scene == "broken":
        raise ValueError("the door is stuck")
    return f"You see {scene}."


@server.tool()
def act(what: str) -> str:
    said.append(what)
    return f"you {what}"


@server.tool()
def look(what: str = "") -> CallToolResult:
    """A picture; `large` is over the bound, `lie` is none."""
    data = {"large": bytes(6 << 20), "lie": b"no picture"}.get(what, picture(7))
    image = ImageContent(type="image", data=base64.b64encode(data).decode(), mime_type="image/png")
    return CallToolResult(content=[TextContent(type="text", text=f"you look {what}"), image])


@server.tool()
def cheat() -> str:
    said.append("cheat")
    return "the answer is 7"


@server.tool()
def respond(response: str) -> str:
    said.append(f"answer {response}")
    return "taken"


@server.tool()
def given(ctx: Context[Any, Any], variable: str = "", header: str = "") -> str:
    """The value of an environment variable, or of a header of this request."""
    if variable:
        return os.environ.get(variable, "nothing")
    request: Any = ctx.request_context.request
    return str(request.headers.get(header, "nothing"))


@server.tool()
def evaluate(how: str = "log") -> CallToolResult:
    if how == "broken":
        raise ValueError("the grader is gone")
    structured: dict[str, dict[str, Any] | None] = {
        "log": {"score": float(len(said)), "log": said, "content": "judged"},
        "subscores": {"subscores": {"a": 1.0, "b": 0.5, "c": 9}, "weights": {"a": 0.5, "b": 0.5}},
        "text": None,
        "words": {"verdict": "fine"},
        "word": {"reward": "high"},
    }
    text = {"text": '{"grade": 0.25}', "log": str(said)}.get(how, "it went well")
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured[how])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
