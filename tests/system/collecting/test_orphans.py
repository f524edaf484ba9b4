"""After `kill -9` the same command goes on at once, though processes that an environment has forked live on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.support.command_process import Project

pytestmark = pytest.mark.slow

WORLD = """
import ctypes, multiprocessing, os, time
from pathlib import Path
from windrow import Env, Observation, Step

def fork_in_c():
    child = ctypes.CDLL(None).fork()
    if child == 0:
        time.sleep(600)
    return child

class World(Env):
    version = 1

    async def reset(self, task):
        if not Path("orphan").exists():
            if task["how"] == "pool":
                World.pool = multiprocessing.get_context("fork").Pool(1)
                child = World.pool.apply(os.getpid)
            else:
                child = fork_in_c()
            Path("orphan.new").write_text(str(child))
            os.rename("orphan.new", "orphan")
            time.sleep(600)
        return Observation([{"role": "user", "content": task["prompt"]}])

    async def step(self, reply, results):
        return Step(done=True, reward=1.0)
"""


@pytest.mark.parametrize(
    ("how", "flags"), [("pool", ()), ("fork in C", ()), ("fork in C", ("--workers", "1"))]
)
def test_a_killed_run_continues_though_a_process_that_it_forked_lives(
    project: Callable[..., Project], how: str, flags: tuple[str, ...]
) -> None:
    home = project()
    home.module("world", WORLD)
    home.tasks([{"prompt": "hello", "how": how}])
    command = ("--env", "world:World", *flags)
    running = home.start_collect(*command)
    running.until((home.path / "orphan").exists, "it has forked")
    running.signal(signal.SIGKILL)
    running.wait()
    orphan = int((home.path / "orphan").read_text())
    try:
        resumed = home.collect(*command)
        os.kill(orphan, 0)  # it still lives
    finally:
        os.kill(orphan, signal.SIGKILL)
    assert resumed.code == 0, resumed.err
    assert [rollout.status for rollout in home.rollouts()] == ["completed"]
