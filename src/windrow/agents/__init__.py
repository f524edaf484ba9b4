"""Who drives an episode."""

from __future__ import annotations

import inspect
from typing import Any

from windrow.agents.base import Agent, Session
from windrow.agents.external import Dispatch, Heard, Piece, Played, Said
from windrow.agents.function import AgentFunction, function_agent
from windrow.errors import UsageError
from windrow.registry import resolve

__all__ = [
    "Agent",
    "AgentFunction",
    "Dispatch",
    "Heard",
    "Piece",
    "Played",
    "Said",
    "Session",
    "as_agent",
    "find_agent",
]


def find_agent(name: str) -> type[Agent]:
    """The agent called `name`: built in, `module:Class`, `module:function`, or an entry point."""
    from windrow.agents.chat import ChatAgent

    return as_agent(resolve("agent", name, {"chat": ChatAgent}), name)


def as_agent(found: Any, name: str) -> type[Agent]:
    """The class itself, or the one that a function makes."""
    if inspect.isfunction(found):
        return function_agent(found)
    if not (isinstance(found, type) and issubclass(found, Agent)):
        raise UsageError(
            f"agent {name!r} is neither a class derived from windrow.Agent nor an async function"
        )
    return found
