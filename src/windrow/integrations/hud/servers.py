"""The MCP servers of a task: their tools under the names that HUD gives them, and calls by those names.

`${VAR}` and `${VAR:default}` are taken from the environment when the servers are started. A row keeps them
unexpanded. The value of a header or variable that is named like a key is never written down, even if a server repeats
it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from windrow.config import expand, services_in, variables_in
from windrow.errors import EnvError, UsageError
from windrow.records import Json
from windrow.tools import Tool
from windrow.tools.functions import NAME
from windrow.tools.mcp_session import McpAnswer, McpServer, McpSession
from windrow.util.redaction import is_secret, secrets_of_header

SUBMIT = "_hud_submit"


def servers_of(config: Mapping[str, Mapping[str, Json]]) -> dict[str, McpServer]:
    """Return the address of each server with its variables replaced. UsageError names a variable that is not set."""
    servers: dict[str, McpServer] = {}
    for name, written in config.items():
        where = f"mcp_config.{name}"
        if services := services_in(dict(written)):
            raise UsageError(
                f"{where}: ${{service.{min(services)}…}} is for configurations; a row has ${{VARIABLE}}"
            )
        server = expand(dict(written), where=where)
        command, url = server.get("command"), server.get("url")
        if url is not None and not url.startswith(("http://", "https://")):
            raise UsageError(
                f"{where}.url: expected the address of a streamable HTTP endpoint, http://… or https://…"
            )
        servers[name] = McpServer(
            command=(command, *(server.get("args") or ())) if command else (),
            env=server.get("env") or {},
            cwd=server.get("cwd"),
            url=url,
            headers=server.get("headers") or {},
            name=name,  # not its address, which may hold what no message may
        )
    return servers


def redact(config: Mapping[str, Mapping[str, Json]], hide: Callable[[str], None]) -> None:
    """Pass every secret that the servers are given to `hide`. A default is no secret: it stands in the row."""
    for server in config.values():
        in_headers = variables_in(server.get("headers") or {})
        for variable in variables_in(dict(server)):
            if (is_secret(variable) or variable in in_headers) and variable in os.environ:
                hide(os.environ[variable])
        for field in ("headers", "env"):
            for name, written in (server.get(field) or {}).items():
                if any(variable in os.environ for variable in variables_in(written)):
                    for secret in secrets_of_header(name, expand(written, where=field)):
                        hide(secret)


class Servers:
    """The sessions of one episode. A tool of one among several servers is called `SERVER_TOOL`."""

    def __init__(self, servers: Mapping[str, McpServer]) -> None:
        self._servers = servers
        self._sessions: dict[str, McpSession] = {}
        self._of: dict[
            str, tuple[McpSession, str]
        ] = {}  # by the name of a tool here: its server, its name there
        self.tools: tuple[Tool, ...] = ()

    async def open(self, timeout_s: float) -> None:
        """Start or reach all servers concurrently; raise ToolError if one does not list its tools."""
        for name, server in self._servers.items():
            self._sessions[name] = McpSession(server, f"the MCP server {name!r}")
        try:
            async with asyncio.TaskGroup() as group:
                for session in self._sessions.values():
                    group.create_task(session.start(timeout_s))
        except BaseExceptionGroup as problem:
            raise problem.exceptions[0] from None
        self.tools = tuple(
            tool for name, session in self._sessions.items() for tool in self._named(name, session)
        )

    def _named(self, server: str, session: McpSession) -> list[Tool]:
        all_tools: list[Tool] = []
        for tool in session.tools:
            name = f"{server}_{tool.name}" if len(self._sessions) > 1 else tool.name
            if not NAME.fullmatch(name):
                raise EnvError(
                    f"the tool {name!r:.100} cannot be offered: a name is 1 to 64 letters, digits, '_' and '-'; give the server another in 'mcp_config'",
                    kind="tool_name",
                    retryable=False,
                )
            if name in self._of:
                raise EnvError(
                    f"two tools of the task are called {name!r}", kind="tool_clash", retryable=False
                )
            self._of[name] = session, tool.name
            all_tools.append(msgspec.structs.replace(tool, name=name))
        return all_tools

    async def call(self, name: str, arguments: dict[str, Json]) -> McpAnswer:
        if name not in self._of:
            raise EnvError(
                f"there is no tool {name!r} (the servers have: {', '.join(self._of) or 'none'})",
                kind="no_such_tool",
                retryable=False,
            )
        session, tool_name = self._of[name]
        return await session.call(tool_name, arguments)

    async def prompt(self, name: str, arguments: dict[str, str]) -> str:
        """Return the text of a prompt of the first server."""
        text = await self._first.prompt(name, arguments)
        if not text:
            raise EnvError(f"the scenario {name!r} gave an empty prompt", kind="setup_failed")
        return text

    async def submit(self, scenario: str, answer: str) -> McpAnswer:
        """Give the answer to the first server, by a tool that it has and does not list."""
        return await self._first.call(SUBMIT, {"scenario": scenario, "answer": answer})

    async def resource(self, uri: str) -> str:
        """Return the text of a resource of the first server."""
        return await self._first.resource(uri)

    @property
    def _first(self) -> McpSession:
        return next(iter(self._sessions.values()))

    async def close(self) -> None:
        closing: list[Any] = [session.close() for session in self._sessions.values()]
        await asyncio.gather(*closing)
