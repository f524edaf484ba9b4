"""An environment that shows pictures, and pictures to show: its bytes depend on task, sample and position."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from windrow import Env, Observation, Step
from windrow.policies.base import Request
from windrow.records import Message, Task
from windrow.tools import ToolResult
from windrow.util.blobs import is_blob


def picture(number: int, width: int = 8, height: int = 6) -> bytes:
    """A PNG of one colour."""
    row = b"\0" + struct.pack(">I", number)[1:] * width

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(row * height))
        + chunk(b"IEND", b"")
    )


class Pictured(Env):
    """Shows a picture, and after the first reply another one; the second reply ends it."""

    version = 1

    async def reset(self, task: Task) -> Observation:
        self._replies = 0
        return Observation([await self._shown("Look.")])

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        self._replies += 1
        if self._replies == 2:
            return Step(done=True, reward=1.0)
        return Step(messages=[await self._shown("And now?")])

    async def _shown(self, text: str) -> dict[str, Any]:
        data = picture(self.ctx.seed % 1000 + self._replies)
        image = await self.ctx.blobs.image(data, "image/png", 8, 6)
        return {"role": "user", "content": [{"type": "text", "text": text}, image]}


def seen(request: Request) -> str:
    return "seen"


def blobs_of(rollout: dict[str, Any]) -> list[str]:
    """The blobs that a rollout of JSON values names."""
    contents = [message["content"] for message in rollout["messages"]]
    return [
        part["blob"] for content in contents if isinstance(content, list) for part in content if is_blob(part)
    ]
