"""The worlds: what a user implements, and the environments that come with Windrow."""

from __future__ import annotations

from windrow.envs.base import Env, EnvContext, Episode, Observation, Step
from windrow.errors import UsageError
from windrow.naming import resolve

__all__ = ["Env", "EnvContext", "Episode", "Observation", "Step", "find_env"]


def find_env(name: str) -> type[Env]:
    """The environment class called `name`: built in, `module:Class`, or an entry point."""
    from windrow.envs.problem import Problem

    found = resolve("env", name, {"problem": Problem})
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise UsageError(f"env {name!r} is not a class derived from windrow.Env")
    return found
