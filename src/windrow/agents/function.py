"""A function as an agent: `async def my_agent(session)`, named `module:my_agent`.

Its `version` attribute, if it has one, is part of the behaviour; without one a changed source is warned of.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from windrow.agents.base import Agent, Session
from windrow.errors import UsageError
from windrow.records import Json

AgentFunction = Callable[[Session], Awaitable[None]]


def function_agent(function: Callable[..., Any]) -> type[Agent]:
    """The agent class whose `run` is `function`; it bears the function's name."""
    called = f"{function.__module__}:{function.__qualname__}"
    if not inspect.iscoroutinefunction(function):
        raise UsageError(f"agent {called!r} is not async: write `async def {function.__name__}(session)`")
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise UsageError(f"agent {called!r} must take one argument, the session") from None

    class FunctionAgent(Agent):
        version = getattr(function, "version", None)
        __wrapped__ = staticmethod(function)  # where `inspect` finds the source

        async def run(self, session: Session) -> None:
            await function(session)

        @classmethod
        def check_settings(cls, settings: Mapping[str, Json]) -> None:
            if settings:
                raise ValueError(f"a function takes no settings, and {next(iter(settings))!r} is given")

    FunctionAgent.__module__ = function.__module__
    FunctionAgent.__name__, FunctionAgent.__qualname__ = function.__name__, function.__qualname__
    return FunctionAgent
