"""Agents: what drives an episode, turn by turn, through a session.

Here are the interface that users implement (`Agent`, `Session`), the `chat` agent, agents that are functions, and the
record of episodes that an agent played elsewhere. The session's implementation, its limits and its recording are in
`engine/`; agents of particular systems are in `integrations/`.
"""

from __future__ import annotations

import inspect
from typing import Any

from windrow.agents.base import Agent, Session
from windrow.agents.external import Dispatch, Heard, InputMessage, ModelTurn, Piece, Played, Said
from windrow.agents.function import AgentFunction, function_agent
from windrow.errors import UsageError
from windrow.registry import resolve

__all__ = [
    "Agent",
    "AgentFunction",
    "Dispatch",
    "Heard",
    "InputMessage",
    "ModelTurn",
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


def as_agent(part: Any, name: str) -> type[Agent]:
    """The class itself, or the one that a function makes."""
    if inspect.isfunction(part):
        return function_agent(part)
    if not (isinstance(part, type) and issubclass(part, Agent)):
        raise UsageError(
            f"agent {name!r} is neither a class derived from windrow.Agent nor an async function"
        )
    return part
