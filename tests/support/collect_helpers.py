"""Short ways through the public doors: collect into a list, a policy from a function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import windrow
from windrow import Rollout
from windrow.policies.scripted import CallablePolicy

NO_WAIT = "policy.backoff_s=0"


def answering(reply: str | Callable[..., Any]) -> CallablePolicy:
    """A policy that says `reply`, or what the function makes of the request."""
    return CallablePolicy(reply if callable(reply) else lambda request: reply, name="test")


async def collected(tasks: Any, **options: Any) -> list[Rollout]:
    """What one call of `windrow.collect` yields."""
    options["sets"] = [NO_WAIT, *options.get("sets", ())]
    return [rollout async for rollout in windrow.collect(tasks, **options)]


async def single(tasks: Any, **options: Any) -> Rollout:
    """The only rollout that one call yields; without retries, so that a failure shows as it is."""
    [rollout] = await collected(tasks, **{"retries": 0, **options})
    return rollout


async def until(condition: Callable[[], object]) -> None:
    """Wait for what happens in the thread of a server; pytest's time limit is the bound."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def lines(run: Path) -> list[bytes]:
    """The whole lines of a run's log, as they are on disk; the last one may be under way just now."""
    log = run / "rollouts.jsonl"
    return log.read_bytes().rpartition(b"\n")[0].splitlines() if log.exists() else []
