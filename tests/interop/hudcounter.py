"""An environment of HUD as its own package serves it: `python hudcounter.py`."""

from __future__ import annotations

from hud.server import MCPServer
from hud.tools.types import EvaluationResult

server = MCPServer(name="counter")
counter = {"n": 0}


@server.tool
async def setup(start: int = 0) -> str:
    counter["n"] = start
    return f"The counter is at {start}."


@server.tool
async def add(by: int) -> int:
    counter["n"] += by
    return counter["n"]


@server.tool
async def evaluate(target: int) -> EvaluationResult:
    return EvaluationResult(reward=float(counter["n"] == target), done=True, content="counted")


if __name__ == "__main__":
    server.run(transport="stdio")
