"""A real collector that drives a real browser: what a kill of either costs, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_process import Project, prompt_of
from tests.support.model_server import ModelServer
from tests.web.origins import Origin
from tests.web.pools import alive, chromiums, wait_until
from windrow.util.reaper import descendants

pytestmark = pytest.mark.slow

BROWSING = """
from contextlib import AsyncExitStack
from windrow import Env, Observation, Step
from windrow.envs.web.pool import browsers, close_browsers

class Browsing(Env):
    version = 1

    async def reset(self, task):
        self.stack = AsyncExitStack()
        pool = await browsers(self.settings)
        self.lease = await self.stack.enter_async_context(pool.lease(seconds=600))
        await self.lease.goto(task["start_url"])
        return Observation([{"role": "user", "content": task["prompt"]}])

    async def step(self, reply, results):
        title = await self.lease.do("page", lambda page: page.title())
        return Step(reward=float(title == reply.text), done=True)

    async def close(self):
        await self.stack.aclose()

    @classmethod
    async def finish(cls, settings):
        await close_browsers(settings)
"""
TASKS, AT_ONCE = 10, 4


class Model:
    """Answers the first tasks at once, and the others when it is told to."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, body: dict[str, Any], n: int) -> str:
        if int(prompt_of(body)) >= AT_ONCE:
            self.go.wait(120)
        return "here"


@pytest.fixture
def model() -> Iterator[Model]:
    made = Model()
    yield made
    made.go.set()


def test_a_killed_collector_leaves_no_browser_and_a_killed_browser_no_false_reward(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "t"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    with Origin() as origin, ModelServer(model) as server:
        home = Project(tmp_path, server)
        home.module("browsing", BROWSING)
        home.tasks({"prompt": str(n), "start_url": origin.url(f"/{n}")} for n in range(TASKS))
        settings = ["browsers=1", "sandbox=false", f"allow=['{origin.host}']"]
        flags = [word for one in settings for word in ("--set", f"env.settings.{one}")]
        flags += ["--env", "browsing:Browsing", "--concurrency", str(AT_ONCE)]

        def in_mid_run(asked: int) -> bool:
            log = home.run / "rollouts.jsonl"
            done = log.read_bytes().count(b"\n") if log.exists() else 0
            return done >= AT_ONCE and server.completions >= asked

        try:
            killed = home.start_collect(*flags)
            killed.until(lambda: in_mid_run(AT_ONCE + 2), "some are done and others under way")
            everything = descendants(killed.pid)
            assert len(chromiums(killed.pid)) == 1
            killed.signal(signal.SIGKILL)
            killed.wait()
            wait_until(lambda: not alive(everything), "all that the collector had started to end")
            wait_until(lambda: not list(scratch.iterdir()), "what they kept on disk to go")
            model.go.set()  # nobody is there any more
            finished = [line["id"] for line in home.lines() if line["status"] == "completed"]
            model.go = threading.Event()

            again = home.start_collect(*flags)
            asked = server.completions
            again.until(lambda: in_mid_run(asked + 1), "others are under way")
            [browser] = chromiums(again.pid)
            os.kill(browser, signal.SIGKILL)
            model.go.set()
            ended = again.wait()
        finally:
            home.close()
        assert ended.code == 0, ended.err
        assert {rollout.reward for rollout in home.rollouts()} == {1.0}
        lines = home.lines()
        lost = [line for line in lines if line["status"] == "failed"]
        assert {(line["error"]["owner"], line["error"]["kind"]) for line in lost} == {
            ("infra", "browser_gone")
        }
        assert {line["reward"] for line in lost} == {None}
        assert len(home.rollouts()) == TASKS
        tries = Counter(line["id"] for line in lines)
        assert {tries[done] for done in finished} == {1}
        assert len(finished) >= AT_ONCE
        assert list(scratch.iterdir()) == []


def test_an_interrupt_of_the_whole_terminal_leaves_the_browser_to_what_is_under_way(
    tmp_path: Path, model: Model
) -> None:
    """Ctrl-C goes to every process of the terminal: what is under way is finished all the same."""
    with Origin() as origin, ModelServer(model) as server:
        home = Project(tmp_path, server)
        home.module("browsing", BROWSING)
        home.tasks({"prompt": str(AT_ONCE + n), "start_url": origin.url(f"/{n}")} for n in range(4))
        settings = f"{{browsers: 1, sandbox: false, allow: ['{origin.host}']}}"
        flags = ["--env", "browsing:Browsing", "--set", f"env.settings={settings}", "--concurrency", "2"]
        try:
            running = home.start_collect(*flags, start_new_session=True)
            running.until(lambda: server.completions == 2, "two are under way")
            everything = descendants(running.pid)
            os.killpg(running.pid, signal.SIGINT)
            running.until_said("stopping")
            model.go.set()
            ended = running.wait()
        finally:
            home.close()
        assert ended.code == 130, ended.err
        assert [line["reward"] for line in home.lines()] == [1.0, 1.0]
        wait_until(lambda: not alive(everything), "all that it had started to end")
