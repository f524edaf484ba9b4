"""Small environments that record every call and misbehave where a test asks for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import windrow
from tests.support.collect_helpers import answering, collected
from windrow import Env, Observation, Rollout, Step

Deed = Callable[[Env], Awaitable[Any]]


def world(log: list[str], *, turns: int = 1, tools: Any = (), **at: Deed) -> type[Env]:
    """An environment of `turns` turns that appends the name of each call to `log`; `step=deed` and so on has the
    deed done there first, and what it returns, unless None, is returned."""

    async def done(env: Env, name: str) -> Any:
        log.append(name)
        return await at[name](env) if name in at else None

    class Traced(Env):
        version = 1

        async def reset(self, task: Any) -> Any:
            self.task = task
            self.steps = 0
            found = await done(self, "reset")
            return found or Observation([{"role": "user", "content": task["prompt"]}], tools)

        async def step(self, reply: Any, results: Any) -> Any:
            self.reply, self.results = reply, results
            self.steps += 1
            found = await done(self, "step")
            if found is not None:
                return found
            said = {"role": "user", "content": f"step {self.steps}"}
            return Step(messages=[said], done=self.steps >= turns, state={"steps": self.steps})

        async def score(self, episode: Any) -> Any:
            self.episode = episode
            return await done(self, "score")

        async def close(self) -> None:
            await done(self, "close")

    return Traced


async def played(
    env: type[Env], run: Path, *, policy: Any = "ok", task: Any = None, **options: Any
) -> Rollout:
    """One attempt in `env`, as it is read back from the disk."""
    who = policy if hasattr(policy, "complete") else answering(policy)
    options = {"retries": 0, "call_retries": 0, **options}
    await collected([task or {"prompt": "go"}], env=env, policy=who, out=str(run), **options)
    [rollout] = windrow.load(run, attempts="all")
    return rollout


def raising(problem: BaseException) -> Deed:
    async def deed(env: Env) -> Any:
        raise problem

    return deed


def returning(value: Any) -> Deed:
    async def deed(env: Env) -> Any:
        return value

    return deed
