"""Who drives an episode."""

from __future__ import annotations

from windrow.agents.base import Agent, Session
from windrow.errors import UsageError
from windrow.naming import resolve

__all__ = ["Agent", "Session", "find_agent"]


def find_agent(name: str) -> type[Agent]:
    """The agent class called `name`: built in, `module:Class`, or an entry point."""
    from windrow.agents.chat import ChatAgent

    found = resolve("agent", name, {"chat": ChatAgent})
    if not (isinstance(found, type) and issubclass(found, Agent)):
        raise UsageError(f"agent {name!r} is not a class derived from windrow.Agent")
    return found
