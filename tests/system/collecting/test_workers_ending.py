"""`--workers N`: a command with workers comes to an end, whatever became of one of them."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.command_process import PATIENCE_S, Project, prompt_of

pytestmark = pytest.mark.slow

WORLD = """
import os, subprocess, sys, time
from pathlib import Path
from windrow import Env, Observation, Step

class World(Env):
    version = 1

    async def reset(self, task):
        if task["what"] == "leave a process":
            os.system("sleep 300 & echo $! > left")
        if task["what"] == "block":
            Path("blocked").touch()
            time.sleep(300)
        if task["what"] == "tell":
            Path("told").write_text(os.environ.get("PYTHONPATH", ""))
        return Observation([{"role": "user", "content": task["prompt"]}])

    async def step(self, reply, results):
        return Step(done=True, reward=1.0)
"""
JUDGE = """
import asyncio
from pathlib import Path

async def judge(task, reply):
    if not Path("able").exists():
        raise RuntimeError("not yet")
    Path("judging").touch()
    while not Path("said").exists():
        await asyncio.sleep(0.01)
    return 1.0

judge.after_commit = True
judge.version = 1
"""


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    opened = threading.Event()
    yield opened
    opened.set()


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        return [int(child) for child in file.read().split()]


def statuses(home: Project) -> list[str]:
    return [line["status"] for file in home.run.glob("rollouts.*.jsonl") for line in home.lines(file.name)]


def worlds(project: Callable[..., Project], *what: str) -> Project:
    home = project()
    home.module("world", WORLD)
    home.tasks({"prompt": f"what is {n}", "what": said} for n, said in enumerate(what))
    return home


def test_when_the_last_worker_that_is_busy_dies_the_idle_ones_are_let_go(
    project: Callable[..., Project], gate: threading.Event
) -> None:
    home = project(lambda body, n: str(prompt_of(body) == "slow" and gate.wait(PATIENCE_S)))
    home.tasks([{"prompt": "slow"}, {"prompt": "quick"}])
    running = home.start_collect("--workers", "2", "--concurrency", "2")
    running.until(lambda: home.server.completions == 2, "both are asked for")
    running.until_said("  1/2  ")
    idle = next(file.name.split(".")[1] for file in home.run.glob("rollouts.*.jsonl") if file.stat().st_size)
    busy = "w1" if idle == "w0" else "w0"
    os.kill(json.loads((home.run / f"lock.{busy}").read_text())["pid"], signal.SIGKILL)
    ended = running.wait()
    assert ended.code == 1
    assert f"worker {busy} died (SIGKILL)" in ended.err


def test_a_budget_that_is_used_up_before_the_workers_are_there_ends_the_run(
    project: Callable[..., Project],
) -> None:
    home = project()
    home.tasks([{"prompt": "hello"}, {"prompt": "again"}])
    stopped = home.collect("--workers", "2", "--budget-seconds", "0.0001")
    assert stopped.code == 3, stopped.err
    assert home.collect("--workers", "2").code == 0


def test_a_signal_while_earlier_rollouts_are_graded_ends_the_run(project: Callable[..., Project]) -> None:
    home = project()
    home.module("judging", JUDGE)
    home.tasks({"prompt": f"what is {n}"} for n in range(4))
    assert home.collect("--scorer", "judging:judge", "--limit", "2").code == 1
    (home.path / "able").touch()
    running = home.start_collect("--scorer", "judging:judge", "--workers", "2")
    running.until((home.path / "judging").exists, "it judges")
    running.signal(signal.SIGINT)
    running.until_said("finished first")
    (home.path / "said").touch()
    assert running.wait().code == 130


def test_a_process_that_an_environment_leaves_behind_does_not_hold_up_the_command(
    project: Callable[..., Project],
) -> None:
    home = worlds(project, "leave a process", "nothing")
    ended = home.collect("--env", "world:World", "--workers", "2")
    os.kill(int((home.path / "left").read_text()), signal.SIGKILL)
    assert ended.code == 0, ended.err


def test_a_worker_that_does_not_listen_is_killed_by_a_third_signal(project: Callable[..., Project]) -> None:
    home = worlds(project, "block", "block")
    running = home.start_collect("--env", "world:World", "--workers", "2")
    running.until((home.path / "blocked").exists, "one blocks")
    for times, said in enumerate(("finished first", "cancelling what is running"), 1):
        running.signal(signal.SIGINT)
        running.until(lambda: said in running.err, f"{times} signals are taken")  # noqa: B023
    running.signal(signal.SIGINT)
    ended = running.wait()
    assert ended.code == 130
    assert "died (SIGKILL)" in ended.err


def test_a_sigterm_to_every_process_lets_the_workers_finish_what_they_run(
    project: Callable[..., Project], gate: threading.Event
) -> None:
    def reply(body: dict[str, Any], n: int) -> str:
        assert gate.wait(PATIENCE_S)
        return "42"

    home = project(reply)
    home.tasks({"prompt": f"what is {n}"} for n in range(12))
    running = home.start_collect("--workers", "2", "--concurrency", "4")
    running.until(lambda: home.server.completions == 4, "four calls are under way")
    for pid in (*children(running.pid), running.pid):
        os.kill(pid, signal.SIGTERM)
    running.until_said("finished first")
    gate.set()
    ended = running.wait()
    assert ended.code == 143, ended.err
    assert statuses(home) == ["completed"] * 4


def test_what_an_environment_starts_has_the_pythonpath_of_the_command(
    project: Callable[..., Project],
) -> None:
    home = worlds(project, "tell", "nothing")
    ended = home.collect("--env", "world:World", "--workers", "2")
    assert ended.code == 0, ended.err
    assert (home.path / "told").read_text() == os.environ.get("PYTHONPATH", "")
