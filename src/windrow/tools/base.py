"""A tool: a name, a JSON schema that the policy is shown, and a function that the engine calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from windrow.records import Call, Json

ToolFunction = Callable[..., Any | Awaitable[Any]]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """`call(**arguments)` returns the result (text, or anything JSON); it raises when it fails."""

    name: str
    description: str
    parameters: dict[str, Json]
    call: ToolFunction

    def schema(self) -> dict[str, Json]:
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one call: the text that the policy is told, and whether the call failed."""

    call: Call
    content: str
    failed: bool = False
