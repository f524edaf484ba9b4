"""A HUD environment as an MCP server over standard streams: a row's servers start it as `python golden_world.py`."""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer

server = MCPServer("notebook")
notes: dict[str, str] = {}
answers: list[str] = []


@server.tool()
def setup(pages: dict[str, str]) -> str:
    """Fill the notebook."""
    notes.update(pages)
    return f"The notebook has the pages: {', '.join(notes)}."


@server.tool()
def read_page(name: str) -> str:
    """Read a page of the notebook."""
    return notes[name]


@server.tool()
def submit(response: str) -> str:
    """Hand in the answer."""
    answers.append(response)
    return "handed in"


@server.tool()
def evaluate(answer: str) -> dict[str, Any]:
    """Grade the answer."""
    right = float(any(answer in said for said in answers))
    return {"reward": right, "subscores": {"answer": right, "pages": 1.0}}


if __name__ == "__main__":
    server.run()
