"""The tools that a configuration names."""

from __future__ import annotations

from collections.abc import Sequence

from windrow.config import McpConfig, RunConfig, ToolConfig, expand, services_in
from windrow.errors import UsageError
from windrow.registry import import_extra, resolve
from windrow.tools.base import Tool
from windrow.tools.filters import ToolFilter
from windrow.tools.functions import as_tool
from windrow.tools.toolbox import FunctionTools, Toolbox, ToolSource
from windrow.util.redaction import Redactor, is_secret, secrets_of_header


def named_tools(configs: Sequence[ToolConfig]) -> list[Tool]:
    """The functions that are named, each as a tool."""
    return [_function(config.function) for config in configs if config.function is not None]


def make_toolbox(run: RunConfig, functions: Sequence[Tool], redactor: Redactor) -> Toolbox:
    """The run's functions and MCP servers, behind its filter; nothing is started yet."""
    sources: list[ToolSource] = [FunctionTools(functions)] if functions else []
    for number, config in enumerate(run.tools):
        where = f"tools[{number}]"
        if (config.function is None) == (config.mcp is None):
            raise UsageError(f"{where}: give one of 'function' (module:name) and 'mcp'")
        if config.mcp is not None:
            sources.append(_mcp(config, where, redactor))
    return Toolbox(sources, ToolFilter(tuple(run.allow_tools), tuple(run.deny_tools)))


def _function(name: str) -> Tool:
    part = resolve("tool", name, {})
    if not (isinstance(part, Tool) or callable(part)):
        raise UsageError(f"tool {name!r} is neither a function nor a windrow.Tool")
    return as_tool(part)


def _mcp(config: ToolConfig, where: str, redactor: Redactor) -> ToolSource:
    import_extra("mcp", extra="mcp", what="a tool server (--mcp)")
    from windrow.tools.mcp import McpServer, McpTools

    assert config.mcp is not None
    if bool(config.mcp.command) == (config.mcp.url is not None):
        raise UsageError(f"{where}.mcp: give one of 'command' and 'url'")
    env = expand(config.mcp.env, where=f"{where}.mcp.env")
    for name, value in env.items():
        if is_secret(name):
            redactor.add(value)
    if config.mcp.headers and config.mcp.url is None:
        raise UsageError(f"{where}.mcp.headers: a command is sent none; they go with a 'url'")
    headers = expand(config.mcp.headers, where=f"{where}.mcp.headers")
    for name, value in headers.items():
        for secret in secrets_of_header(name, value):
            redactor.add(secret)
    server = McpServer(
        command=tuple(expand(config.mcp.command, where=f"{where}.mcp.command")),
        env=env,
        cwd=expand(config.mcp.cwd, where=f"{where}.mcp.cwd"),
        url=expand(config.mcp.url, where=f"{where}.mcp.url"),
        headers=headers,
        name=config.name or _unexpanded(config.mcp),
    )
    return McpTools(server, shared=config.session == "shared", start_timeout_s=config.start_timeout_s)


def _unexpanded(server: McpConfig) -> str | None:
    """The command or URL as configured, which names a server whose expanded one holds the changing address of a service."""
    configured = " ".join(server.command) or server.url
    return configured if services_in(configured) else None
