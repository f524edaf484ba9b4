"""The tools of a run: where they come from, and which of them a policy may see and call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import NamedTuple, Protocol

from windrow.errors import EnvError, UsageError
from windrow.records import Json
from windrow.tools.base import Tool
from windrow.tools.filters import ToolFilter


class ToolSource(Protocol):
    """Gives tools: `open` and `close` once a run, `episode` once an episode."""

    @property
    def label(self) -> str:
        """What a message calls this source."""

    def identity(self) -> Json:
        """What makes these tools the ones they are, for the behaviour fingerprint: nothing volatile."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    def episode(self) -> AbstractAsyncContextManager[Sequence[Tool]]: ...


class FunctionTools:
    """Tools that are functions of this process: the same ones for every episode."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = tuple(tools)
        self.label = "the run's functions"
        if clash := _clash((self.label, tool.name) for tool in self.tools):
            raise UsageError(clash)

    def identity(self) -> Json:
        return [tool.schema() for tool in self.tools]

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        return None

    @asynccontextmanager
    async def episode(self) -> AsyncIterator[Sequence[Tool]]:
        yield self.tools


class Offer(NamedTuple):
    """What one episode may use: tools by name, and the names of those that exist but are denied."""

    tools: dict[str, Tool]
    denied: frozenset[str]


NO_TOOLS = Offer({}, frozenset())


class Toolbox:
    """The tool sources of a run, opened and closed with it, and the filter over the tools that they give."""

    def __init__(self, sources: Sequence[ToolSource] = (), filter: ToolFilter | None = None) -> None:
        self._sources = tuple(sources)
        self._filter = filter or ToolFilter()

    @property
    def has_sources(self) -> bool:
        return bool(self._sources)

    def identity(self) -> dict[str, Json]:
        """Empty where there are no tools and no filter, so that it changes no fingerprint."""
        parts: dict[str, Json] = {}
        if self._sources:
            parts["tools"] = [source.identity() for source in self._sources]
        if self._filter.allow:
            parts["allow_tools"] = list(self._filter.allow)
        if self._filter.deny:
            parts["deny_tools"] = list(self._filter.deny)
        return parts

    async def open(self) -> None:
        """Open every source; whatever cannot serve the run is an error before its first episode."""
        for source in self._sources:
            await source.open()
        if self._sources:
            async with self.episode():
                pass  # each source gives its tools, and no two names clash

    async def close(self) -> None:
        for source in self._sources:
            await source.close()

    @asynccontextmanager
    async def episode(self) -> AsyncIterator[tuple[tuple[str, Tool], ...]]:
        """The tools of one episode, each with where it comes from, before the filter."""
        async with AsyncExitStack() as stack:
            tools: list[tuple[str, Tool]] = []
            for source in self._sources:
                tools += [(source.label, tool) for tool in await stack.enter_async_context(source.episode())]
            if clash := _clash((label, tool.name) for label, tool in tools):
                raise EnvError(clash, kind="tool_clash", retryable=False)
            yield tuple(tools)

    def offer(
        self, run_tools: Sequence[tuple[str, Tool]], env_tools: Sequence[Tool], denied: Sequence[str] = ()
    ) -> Offer:
        """The environment's tools and the run's, after the filter; `denied` are those that the environment keeps back."""
        if not run_tools and not env_tools and not denied:
            return NO_TOOLS
        everything = (*(("the environment", tool) for tool in env_tools), *run_tools)
        if clash := _clash((label, tool.name) for label, tool in everything):
            raise EnvError(clash, kind="tool_clash", retryable=False)
        tools = {tool.name: tool for _, tool in everything if self._filter.permits(tool.name)}
        names = {tool.name for _, tool in everything} | set(denied)
        return Offer(tools, frozenset(names - tools.keys()))


def _clash(names: Iterable[tuple[str, str]]) -> str | None:
    """What is wrong where two tools have one name."""
    seen: dict[str, str] = {}
    for label, name in names:
        if name in seen:
            return f"two tools are called {name!r}: one of {seen[name]}, one of {label}"
        seen[name] = label
    return None
