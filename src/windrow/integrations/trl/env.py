"""`trl-env`: a class that TRL's `environment_factory` takes, played as an environment: `trl-env:module:Class`.

Its public methods are the tools; `reset(**row)` opens the episode, and a text that it returns is added to the last user
message; `get_reward()`, if there is one, is the score under the name of the class, with weight 1. An instance plays one
episode. A public `close` is called at the end and is no tool, so that nothing is left open. Needs no trl.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from windrow.envs.base import Env, Episode, Observation, Step
from windrow.envs.opening import check_opening, opening
from windrow.errors import EnvError, UsageError
from windrow.records import Json, Message, Score, Task
from windrow.registry import load
from windrow.tools import ToolResult
from windrow.tools.functions import function_tool
from windrow.util.threads import in_thread

_RESERVED = ("reset", "get_reward", "close")


def env_settings(address: str) -> dict[str, Json]:
    """The settings that `trl-env:MODULE:CLASS` means."""
    return {"factory": address}


class TrlEnv(Env):
    name = "trl-env"
    version = 1
    takes_prompt = True

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        unknown = [key for key in settings if key != "factory"]
        if unknown or not isinstance(settings.get("factory"), str):
            raise ValueError("the only setting is 'factory', MODULE:CLASS: write --env trl-env:MODULE:CLASS")
        try:
            factory = load("environment_factory", settings["factory"])
        except UsageError as problem:
            raise ValueError(str(problem)) from None
        if not callable(factory):
            raise ValueError(f"{settings['factory']!r} is no class or function")

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        check_opening(row)

    async def reset(self, task: Task) -> Observation:
        messages = [dict(message) for message in opening(task, self.ctx.prompt)]
        self._world = await in_thread(load("environment_factory", self.settings["factory"]))
        if not callable(getattr(self._world, "reset", None)):
            raise EnvError(f"{self._class_name} has no method reset()", retryable=False)
        told = await _called(self._world.reset, **(task.data or {}))
        if told is not None:
            _append(messages, told)
        members = inspect.getmembers(type(self._world), predicate=inspect.isfunction)
        names = [name for name, _ in members if not name.startswith("_") and name not in _RESERVED]
        return Observation(messages, [function_tool(getattr(self._world, name)) for name in names])

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        return Step() if reply.tool_calls else Step(done=True, stop="answered")

    async def score(self, episode: Episode) -> Score | None:
        if not hasattr(self._world, "get_reward"):
            return None
        reward = await _called(self._world.get_reward)
        return None if reward is None else Score({self._class_name: (float(reward), 1.0)})

    async def close(self) -> None:
        if callable(close := getattr(getattr(self, "_world", None), "close", None)):
            await _called(close)

    @property
    def _class_name(self) -> str:
        return type(self._world).__name__


async def _called(method: Any, **arguments: Json) -> Any:
    """What a method returns, plain (in a thread) or async."""
    if inspect.iscoroutinefunction(method):
        return await method(**arguments)
    return await in_thread(method, **arguments)


def _append(messages: list[dict[str, Any]], told: Any) -> None:
    """Add what reset() returned to the last user message, as TRL does: a text, or content parts."""
    last = next((message for message in reversed(messages) if message["role"] == "user"), None)
    if last is None:
        raise EnvError(
            "reset() returned something to tell, and the prompt has no user message", retryable=False
        )
    content = last["content"]
    if isinstance(content, str) and isinstance(told, str):
        last["content"] = content + told
        return
    last["content"] = [*_parts(content), *_parts(told)]


def _parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
