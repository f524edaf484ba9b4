"""Scorers of a user's: functions that evaluate what a model wrote."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from windrow import RolloutGroup, Score


def evaluates(task: Any, reply: str, *, times: float = 1.0) -> float:
    return times * float(eval(reply))


async def slowly(task: Any, reply: str) -> Score:
    await asyncio.sleep(0)
    return Score(
        {"length": len(reply), "first": (1.0, 0.5)}, evidence={"row": task["prompt"]}, metrics={"m": 2}
    )


def together(group: RolloutGroup) -> dict[Any, float]:
    return {rollout.key: float(eval(rollout.reply)) for rollout in group.rollouts}


def rewards(prompts: list[Any], completions: list[Any], log_metric: Any, **columns: Any) -> list[float]:
    log_metric("members", len(completions))
    return [float(eval(completion)) for completion in completions]


async def asks(task: Any, reply: str, ctx: Any) -> float:
    return float(await ctx.ask([{"role": "user", "content": reply}], float))


def by_itself(task: Any, reply: str) -> float:
    return float(os.getppid())


together.unit = "group"  # type: ignore[attr-defined]
by_itself.isolate = True  # type: ignore[attr-defined]
