"""Windrow collects rollouts: tasks in, durable graded rollouts out.

    import windrow

    async for rollout in windrow.collect("tasks.jsonl", model="m", base_url="http://localhost:8000/v1", samples=4):
        print(rollout.id, rollout.reward)

Nothing heavy is imported until it is used. Each package says in its `__init__` what belongs in it; to follow a call, begin
with `collecting`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from windrow.registry import Integration, add_source
from windrow.version import __version__ as __version__

_HOMES = {
    "Agent": "windrow.agents",
    "Completion": "windrow.policies",
    "Env": "windrow.envs",
    "Example": "windrow.exports.base",
    "Exporter": "windrow.exports.base",
    "Match": "windrow.envs",
    "Message": "windrow.records",
    "Observation": "windrow.envs",
    "Policy": "windrow.policies",
    "Request": "windrow.policies",
    "Rollout": "windrow.records",
    "RolloutGroup": "windrow.records",
    "Score": "windrow.records",
    "Step": "windrow.envs",
    "Task": "windrow.records",
    "Tool": "windrow.tools",
    "ToolStop": "windrow.tools",
    "WindrowError": "windrow.errors",
    "collect": "windrow.collecting.api",
    "export": "windrow.exports.run",
    "load": "windrow.store.reader",
    "merge": "windrow.collecting.merge",
    "rescore": "windrow.grading.rescoring",
    "run_examples": "windrow.collecting.api",
    "tool": "windrow.tools",
}

__all__ = [*_HOMES]

if TYPE_CHECKING:
    from windrow.agents import Agent as Agent
    from windrow.collecting.api import collect as collect
    from windrow.collecting.api import run_examples as run_examples
    from windrow.collecting.merge import merge as merge
    from windrow.envs import Env as Env
    from windrow.envs import Match as Match
    from windrow.envs import Observation as Observation
    from windrow.envs import Step as Step
    from windrow.errors import WindrowError as WindrowError
    from windrow.exports.base import Example as Example
    from windrow.exports.base import Exporter as Exporter
    from windrow.exports.run import export as export
    from windrow.grading.rescoring import rescore as rescore
    from windrow.policies import Completion as Completion
    from windrow.policies import Policy as Policy
    from windrow.policies import Request as Request
    from windrow.records import Message as Message
    from windrow.records import Rollout as Rollout
    from windrow.records import RolloutGroup as RolloutGroup
    from windrow.records import Score as Score
    from windrow.records import Task as Task
    from windrow.store.reader import load as load
    from windrow.tools import Tool as Tool
    from windrow.tools import ToolStop as ToolStop
    from windrow.tools import tool as tool


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'windrow' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def _bundled_integrations() -> tuple[Integration, ...]:
    from windrow.integrations import BUNDLED

    return BUNDLED


add_source(_bundled_integrations)
