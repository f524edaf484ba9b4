"""Environments: what sets a task, answers the replies of a policy, and may reward them.

Here are the interfaces that users implement (`Env` in `base.py`, `Match` in `match.py`, the protocols of scorers in
`scoring.py`), and the environments that come with Windrow, one module each; the browser is in `web/`. Driving an episode is
in `engine/`, scorers are in `grading/`, and environments of particular systems are in `integrations/`.
"""

from __future__ import annotations

from windrow.envs.base import (
    Act,
    Ask,
    BaseEnv,
    Env,
    EnvContext,
    Episode,
    Observation,
    ScoreContext,
    Step,
    nobody,
)
from windrow.envs.match import Match
from windrow.errors import UsageError
from windrow.registry import resolve

__all__ = [
    "Act",
    "Ask",
    "BaseEnv",
    "Env",
    "EnvContext",
    "Episode",
    "Match",
    "Observation",
    "ScoreContext",
    "Step",
    "find_env",
    "nobody",
]


def find_env(name: str) -> type[BaseEnv]:
    """The environment class called `name`: built in, `module:Class`, or an entry point."""
    from windrow.envs.chat import Chat
    from windrow.envs.preference import Preference
    from windrow.envs.problem import Problem
    from windrow.envs.prompt import Prompt
    from windrow.envs.rubric import Rubric
    from windrow.envs.tool import ToolUse

    built_in = {
        "problem": Problem,
        "prompt": Prompt,
        "chat": Chat,
        "tool": ToolUse,
        "rubric": Rubric,
        "preference": Preference,
        "web": "windrow.envs.web.env:WebEnv",  # a text: imported only by runs that use it
    }
    part = resolve("env", name, built_in)
    if not (isinstance(part, type) and issubclass(part, BaseEnv)):
        raise UsageError(f"env {name!r} is not a class derived from windrow.Env or windrow.Match")
    return part
