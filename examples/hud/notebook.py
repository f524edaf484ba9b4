"""A HUD environment as an MCP server: a notebook. `python notebook.py` speaks over standard streams, `python notebook.py PORT` over HTTP.

`setup` and `evaluate` are called by the harness, `submit` with the model's answer; the other tools are the model's.
"""

from __future__ import annotations

import sys
from typing import Any

from mcp.server import MCPServer

server = MCPServer("notebook")
notes: dict[str, str] = {}
answers: list[str] = []


@server.tool()
def setup(pages: dict[str, str]) -> str:
    """Fill the notebook."""
    notes.clear()
    answers.clear()
    notes.update(pages)
    return f"The notebook has the pages: {', '.join(notes)}."


@server.tool()
def read_page(name: str) -> str:
    """Read a page of the notebook."""
    return notes[name]


@server.tool()
def write_page(name: str, text: str) -> str:
    """Write a page of the notebook anew."""
    notes[name] = text
    return "written"


@server.tool()
def submit(response: str) -> str:
    """Hand in the answer."""
    answers.append(response)
    return "handed in"


@server.tool()
def evaluate(answer: str | None = None, pages: dict[str, str] | None = None) -> dict[str, Any]:
    """Grade: whether the answer was given, and whether the pages are as they should be."""
    checks: dict[str, float] = {}
    if answer is not None:
        checks["answer"] = float(any(answer in said for said in answers))
    if pages is not None:
        checks["pages"] = float(all(notes.get(name) == text for name, text in pages.items()))
    return {"reward": sum(checks.values()) / len(checks), "subscores": checks}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
