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


class ToolStop(msgspec.Struct, frozen=True):
    """What a tool returns to end the episode: `content` is its result, told and recorded like any other."""

    content: Json = ""


class ToolImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image of a tool's result."""

    data: bytes
    media_type: str
    width: int
    height: int


class Pictured(msgspec.Struct, frozen=True):
    """What a tool returns to show images beside its text."""

    text: str
    images: tuple[ToolImage, ...]


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one call: the text that the policy is told, the images that it is shown (the parts of a message that
    name them), whether it failed, whether it ends the episode."""

    call: Call
    content: str
    images: tuple[dict[str, Json], ...] = ()
    failed: bool = False
    stop: bool = False
