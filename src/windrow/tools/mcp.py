"""Tools of MCP servers for a run: each server must list its tools within `start_timeout_s`.

A failing server spoils the current episode, and the next episode connects again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from windrow.errors import ToolError
from windrow.records import Json
from windrow.tools.base import Tool
from windrow.tools.mcp_session import McpServer, McpSession

__all__ = ["McpServer", "McpTools"]


class McpTools:
    """Implements `ToolSource` with one session per episode; with `shared`, one session for all until it fails."""

    def __init__(self, server: McpServer, *, shared: bool = False, start_timeout_s: float = 60.0) -> None:
        self.label = f"the MCP server {server.label!r}"
        self._server = server
        self._shared = shared
        self._timeout_s = start_timeout_s
        self._common: McpSession | None = None  # what the next episode uses, where it is shared
        self._opening = asyncio.Lock()
        self._users: dict[McpSession, int] = {}

    def identity(self) -> Json:
        return self._server.identity()

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        for connection in [*self._users]:
            await connection.close()
        self._users.clear()
        self._common = None

    @asynccontextmanager
    async def episode(self) -> AsyncIterator[Sequence[Tool]]:
        connection, tools = await self._connected()
        try:
            yield tools
        finally:
            await self._left(connection)

    async def _connected(self) -> tuple[McpSession, tuple[Tool, ...]]:
        if not self._shared:
            connection = await self._started()
            return connection, connection.tools
        async with self._opening:
            tools: tuple[Tool, ...] | None = None
            if self._common is not None:
                with suppress(ToolError):  # it has failed since: the next episode has another
                    tools = await self._common.listed(self._timeout_s)
            if self._common is None or tools is None:
                before, self._common = self._common, None
                if before is not None:
                    await self._forget(before)
                self._common = await self._started()
                tools = self._common.tools
            self._users[self._common] += 1
            return self._common, tools

    async def _started(self) -> McpSession:
        connection = McpSession(self._server, self.label)
        await connection.start(self._timeout_s)
        self._users[connection] = 0
        return connection

    async def _left(self, connection: McpSession) -> None:
        if connection in self._users:
            self._users[connection] -= 1
            if connection is not self._common:
                await self._forget(connection)

    async def _forget(self, connection: McpSession) -> None:
        """Close a connection that is not used any more."""
        if self._users.get(connection, 0) <= 0:
            self._users.pop(connection, None)
            await connection.close()
