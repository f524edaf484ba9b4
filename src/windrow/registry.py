"""Finding things by name: built in, by import path (`my_pkg.my_env:MyEnv`), or by entry point.

One spelling for environments, agents, policies, scorers and loaders. The current directory is importable.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windrow.config import nearest
from windrow.errors import UsageError

# What stands in a layer above those that ask for it by name, and is imported when it is named: an extra goes with each.
BRIDGES: Mapping[str, Mapping[str, str]] = {
    "agent": {"nemo-gym": "windrow.integrations.nemo_gym.agent:NemoGymAgent"},
    "env": {
        "gymnasium": "windrow.integrations.gymnasium.env:Gymnasium",
        "hud": "windrow.integrations.hud.env:Hud",
        "nemo-gym": "windrow.integrations.nemo_gym.env:NemoGym",
        "reasoning-gym": "windrow.integrations.reasoning_gym.tasks:ReasoningGym",
        "textarena": "windrow.integrations.textarena.env:TextArena",
        "web": "windrow.envs.web.env:WebEnv",
    },
    "loader": {
        "gymnasium": "windrow.integrations.gymnasium.env:open_tasks",
        "miniwob": "windrow.integrations.miniwob.tasks:open_tasks",
        "reasoning-gym": "windrow.integrations.reasoning_gym.tasks:open_tasks",
        "textarena": "windrow.integrations.textarena.env:open_tasks",
    },
    "page_reward": {"miniwob": "windrow.integrations.miniwob.tasks:MiniWoB"},
    "scorer": {
        "nemo-gym": "windrow.integrations.nemo_gym.scorer:Verified",
        "reasoning-gym": "windrow.integrations.reasoning_gym.tasks:Verifier",
        "webgym": "windrow.integrations.webgym.scorer:WebGymJudge",
    },
}

# Rows of other systems: by a field that tells them apart, the module that knows them.
ROW_FORMS: Mapping[str, str] = {
    "responses_create_params": "windrow.integrations.nemo_gym.rows",
    "agent_ref": "windrow.integrations.nemo_gym.rows",
    "task_name": "windrow.integrations.webgym.rows",
    "mcp_config": "windrow.integrations.hud.rows",
    "env": "windrow.integrations.hud.rows",
}


def resolve(kind: str, name: str, built_in: Mapping[str, Any]) -> Any:
    """The object called `name` of a `kind` ("env", "scorer", …)."""
    if name in built_in:
        return built_in[name]
    if name in BRIDGES.get(kind, ()):
        return _imported(kind, BRIDGES[kind][name])
    if ":" in name:
        return _imported(kind, name)
    from importlib.metadata import entry_points  # only when needed: it reads every installed package

    plugins = {point.name: point for point in entry_points(group=f"windrow.{kind}s")}
    if name in plugins:
        return plugins[name].load()
    known = sorted({*built_in, *BRIDGES.get(kind, ()), *plugins})
    raise UsageError(
        f"unknown {kind} {name!r}{nearest(name, known)} (known: {', '.join(known)}; "
        f"your own is written module:name)"
    )


def name_of(thing: Any) -> str:
    """How `thing` is spelled in a record: its built-in name, or `module:name`."""
    target = thing if hasattr(thing, "__qualname__") else type(thing)
    if target.__module__.startswith("windrow."):
        return str(target.name)
    return f"{target.__module__}:{target.__qualname__}"


def cache_home() -> Path:
    """Where what can be had again is kept: $WINDROW_CACHE, else the user's cache."""
    own = os.environ.get("WINDROW_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windrow"


def import_extra(module: str, *, extra: str, what: str) -> Any:
    """A module that an extra installs; `what` needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        missing = isinstance(problem, ModuleNotFoundError) and (problem.name or "") in module
        raise extra_needed(extra, what, "" if missing else f" ({problem})") from problem


def extra_needed(extra: str, what: str, why: str = "") -> UsageError:
    return UsageError(f"{what} needs the extra {extra!r}{why}; type: pip install 'windrow-rl[{extra}]'")


def make_here_importable() -> None:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def _imported(kind: str, name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    make_here_importable()
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as problem:
        raise UsageError(f"{kind} {name!r}: cannot import {module_name!r}: {problem}") from problem
    except Exception as problem:
        raise UsageError(
            f"{kind} {name!r}: importing {module_name!r} raised {type(problem).__name__}: {problem}"
        ) from problem
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            hint = nearest(part, [known for known in dir(found) if not known.startswith("_")])
            raise UsageError(f"{kind} {name!r}: {module_name!r} has no {part!r}{hint}") from None
    return found
