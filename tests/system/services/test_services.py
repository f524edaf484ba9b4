"""`services:` in real processes: started, awaited, watched, and gone, with all they have started, however a run ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import yaml

import windrow
from tests.support.command_process import PATIENCE_S, Outcome, Project, Running
from tests.support.doc_pages import ROOT
from tests.support.model_server import ModelServer
from tests.support.nemo_gym_servers import row

pytestmark = pytest.mark.slow

WORLD = """
import aiohttp
from windrow import Env, Observation, Step

class Remote(Env):
    version = 1

    def __init__(self, settings, ctx):
        self.url = settings["url"]

    async def ask(self, what, body):
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{self.url}/{what}", json=body) as answer:
                return await answer.json()

    async def reset(self, task):
        answer = await self.ask("reset", {"prompt": task["prompt"]})
        return Observation([{"role": "user", "content": answer["prompt"]}])

    async def step(self, reply, results):
        if results:
            return Step()
        answer = await self.ask("step", {"reply": reply.text})
        return Step(reward=answer["reward"], done=True)
"""

FORKING = """
import os, signal
from windrow import Env, Observation, Step

class Forking(Env):
    version = 1

    async def reset(self, task):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            while True:
                signal.pause()
        with open("forked", "a") as file:
            file.write(f"{child} ")
        return Observation([{"role": "user", "content": task["prompt"]}])

    async def step(self, reply, results):
        return Step(reward=1.0, done=True)
"""


class Served:
    """A project whose model, and whatever else a test names, are services."""

    def __init__(self, path: Path, **services: dict[str, Any]) -> None:
        path.mkdir()
        self.project = Project(path)
        self.project.tasks({"prompt": f"what is {n}"} for n in range(4))
        self.path, self.run = path, self.project.run
        self.config: dict[str, Any] = {
            "tasks": "tasks.jsonl",
            "policy": {"model": "stub", "base_url": "${service.model.url}/v1", "backoff_s": 0.01},
            "env": "prompt",
            "out": "run",
            "services": {"model": self.service("model", health="/v1/models"), **services},
        }

    def service(self, how: str, **settings: Any) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.support.service_server", how, "{port}", str(self.path)]
        return {"command": command, "cwd": str(ROOT), "stop_timeout_s": 30, **settings}

    def add(self, how: str, **settings: Any) -> None:
        self.config["services"][how] = self.service(how, **settings)

    def start(self, *flags: str, **options: Any) -> Running:
        (self.path / "run.yaml").write_text(yaml.safe_dump(self.config), encoding="utf-8")
        return self.project.start("collect", "--config", "run.yaml", *flags, **options)

    def collect(self, *flags: str) -> Outcome:
        return self.start(*flags).wait()

    def log(self, name: str = "model") -> str:
        return (self.run / "services" / f"{name}.log").read_text(encoding="utf-8")

    def pids(self) -> list[int]:
        return [int(pid) for file in self.path.glob("*.pids") for pid in file.read_text().split()]

    def asked(self) -> int:
        """How often the model was asked."""
        notes = self.path / "asked"
        return len(notes.read_text()) if notes.exists() else 0

    def assert_none_is_left(self, *, started: int, at_once: bool = True) -> None:
        """Each service that was started had three processes; they are gone when the command is, unless it was killed."""
        assert len(self.pids()) == 3 * started
        if at_once:
            assert [pid for pid in self.pids() if runs(pid)] == []
        wait_until_gone(self.pids())

    def close(self) -> None:
        self.project.close()
        for pid in self.pids():
            if runs(pid):
                os.kill(pid, signal.SIGKILL)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    """For those who end a moment after the command has: the kernel ends them, or a supervisor that outlives it."""
    deadline = time.monotonic() + PATIENCE_S
    while left := [pid for pid in pids if runs(pid)]:
        assert time.monotonic() < deadline, f"orphans: {left}"
        time.sleep(0.01)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def make(**services: dict[str, Any]) -> Served:
        made.append(Served(tmp_path / f"served-{len(made)}", **services))
        return made[-1]

    yield make
    for home in made:
        home.close()


def with_a_world(home: Served) -> Served:
    """An environment server beside the model, which is told where that is."""
    home.project.module("world", WORLD)
    home.add("world", health="/health", env={"MODEL": "${service.model.url}"})
    home.config["env"] = {"name": "world:Remote", "settings": {"url": "${service.world.url}"}}
    return home


def with_tools(home: Served) -> Served:
    command = [sys.executable, "-m", "tests.support.mcp_server", "good", "${PORT}"]
    home.config["services"]["tools"] = {"command": command, "cwd": str(ROOT)}
    home.config["tools"] = [{"mcp": {"url": "${service.tools.url}/mcp"}, "session": "shared"}]
    return home


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_model_a_tool_server_and_an_environment_are_started_for_a_run_and_gone_after_it(
    served: Callable[..., Served], workers: str
) -> None:
    home = with_tools(with_a_world(served()))
    done = home.collect("--workers", workers)
    assert done.code == 0, done.err
    assert {rollout.reward for rollout in home.project.rollouts()} == {1.0}
    assert {len(rollout.turns) for rollout in home.project.rollouts()} == {2}
    home.assert_none_is_left(started=2)  # once each, by the parent
    assert "world is loading" in home.log("world")


def test_servers_of_nemo_gym_play_the_data_sets_of_a_split(served: Callable[..., Served]) -> None:
    home = served()
    home.project.tasks([row("2 + 2?", agent=None), row("3 + 3?")], "sums.jsonl")
    home.project.tasks([row("1 + 1?")], "others.jsonl")
    home.config = {
        "agent": "nemo-gym:${service.gym.url}",
        "services": {"gym": home.service("gym", health="/server_instances")},
        "datasets": [
            {"path": "sums.jsonl", "split": "benchmark", "agent": "math", "num_repeats": 2},
            {"path": "others.jsonl", "split": "train"},
        ],
        "out": "run",
    }
    done = home.collect("--split", "benchmark")
    assert done.code == 0, done.err
    found = [(rollout.task.source, rollout.agent, rollout.reward) for rollout in home.project.rollouts()]
    assert found == [("sums", "math", 1.0)] * 4
    home.assert_none_is_left(started=1)


def test_addresses_are_in_no_id_and_a_run_goes_on_at_others(served: Callable[..., Served]) -> None:
    homes = [with_a_world(served()), with_a_world(served())]
    for home in homes:
        assert home.collect("--limit", "2").code == 0
        assert home.collect().code == 0
    ids = [sorted(rollout.id for rollout in home.project.rollouts()) for home in homes]
    assert len(ids[0]) == 4
    assert ids[0] == ids[1]
    assert "127.0.0.1" not in (homes[0].run / "run.json").read_text()


def test_services_are_gone_when_the_run_fails(served: Callable[..., Served]) -> None:
    home = served()
    home.config["services"]["model"]["env"] = {"MODEL_KEY": "another key"}
    home.config["services"]["model"]["health"] = None
    failed = home.collect()
    assert (failed.code, "401" in failed.err) == (1, True), failed.err
    home.assert_none_is_left(started=1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_drains_the_run_before_its_services_are_stopped(
    served: Callable[..., Served], number: int, code: int
) -> None:
    home = served()
    (home.path / "hold").touch()
    running = home.start("--concurrency", "2")
    running.until((home.path / "asked").exists, "the model is asked")
    running.signal(number)
    running.until_said("finished first")
    (home.path / "hold").unlink()
    assert running.wait().code == code
    assert {line["status"] for line in home.project.lines()} == {"completed"}
    home.assert_none_is_left(started=1)


def test_a_second_ctrl_c_cancels_the_run_and_its_services_are_stopped(served: Callable[..., Served]) -> None:
    home = served()
    (home.path / "hold").touch()
    running = home.start()
    running.until((home.path / "asked").exists, "the model is asked")
    running.signal(signal.SIGINT)
    running.until_said("finished first")
    running.signal(signal.SIGINT)
    assert running.wait().code == 130
    assert {line["status"] for line in home.project.lines()} == {"cancelled"}
    home.assert_none_is_left(started=1)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_collector_that_is_killed_leaves_no_service_behind_and_the_run_goes_on(
    served: Callable[..., Served], workers: str
) -> None:
    home = with_a_world(served())
    (home.path / "hold").touch()
    running = home.start("--workers", workers)
    running.until((home.path / "asked").exists, "the model is asked")
    running.signal(signal.SIGKILL)
    running.wait()
    home.assert_none_is_left(started=2, at_once=False)
    (home.path / "hold").unlink()
    assert home.collect("--workers", workers).code == 0
    assert len(home.project.rollouts("all")) == 4


def test_a_collector_that_is_killed_while_it_waits_leaves_no_service_behind(
    served: Callable[..., Served],
) -> None:
    home = served()
    (home.path / "closed").touch()
    running = home.start()
    running.until(lambda: len(home.pids()) == 3, "the service is there")
    running.signal(signal.SIGKILL)
    running.wait()
    home.assert_none_is_left(started=1, at_once=False)


def test_the_wait_for_a_service_is_shown_and_ctrl_c_ends_it(served: Callable[..., Served]) -> None:
    home = served()
    (home.path / "closed").touch()
    running = home.start()
    running.until_said("waiting for service model …")
    running.signal(signal.SIGINT)
    assert running.wait().code == 130
    assert home.project.lines() == []
    home.assert_none_is_left(started=1)


def test_a_service_that_ignores_being_asked_to_end_is_killed(served: Callable[..., Served]) -> None:
    home = served()
    (home.path / "stubborn").touch()
    home.config["services"]["model"]["stop_timeout_s"] = 0.1
    assert home.collect().code == 0
    home.assert_none_is_left(started=1)


def test_services_are_stopped_though_a_process_that_an_environment_has_forked_lives(
    served: Callable[..., Served],
) -> None:
    """It holds the pipe by whose end a supervisor would know that the run is over."""
    home = served()
    home.project.module("world", FORKING)
    home.config["env"] = "world:Forking"
    home.config["services"]["model"]["stop_timeout_s"] = 1
    try:
        assert home.collect().code == 0
        assert [pid for pid in orphans(home) if not runs(pid)] == []
        home.assert_none_is_left(started=1)
    finally:
        for pid in orphans(home):
            os.kill(pid, signal.SIGKILL)


def orphans(home: Served) -> list[int]:
    return [int(pid) for pid in (home.path / "forked").read_text().split()]


@pytest.mark.parametrize(
    ("how", "ready_timeout_s", "why"),
    [
        ("sick", 3, "did not get ready in 3 seconds (ready_timeout_s): http://"),
        ("broken", 600, "died (exit 1)"),
    ],
)
def test_a_service_that_does_not_come_up_is_an_error_with_its_last_words(
    served: Callable[..., Served], how: str, ready_timeout_s: float, why: str
) -> None:
    home = served()
    del home.config["services"]["model"]
    home.config["policy"]["base_url"] = "http://127.0.0.1:9/v1"  # which nobody comes to ask
    home.add(how, health="/health", ready_timeout_s=ready_timeout_s, env={"SECRET_TOKEN": "a-token-of-ours"})
    failed = home.collect()
    assert failed.code == 1
    assert f"service '{how}' {why}" in failed.err
    assert f"The last lines of run/services/{how}.log:\n  {how} is loading with [redacted]" in failed.err
    assert "a-token-of-ours" not in home.log(how) + failed.err + (home.run / "run.json").read_text()
    assert not any(runs(pid) for pid in home.pids())


def test_a_command_that_cannot_be_started_is_an_error_that_says_so(served: Callable[..., Served]) -> None:
    home = served()
    home.config["services"]["tools"] = {"command": "no-such-program --port {port}"}
    failed = home.collect()
    assert failed.code == 1
    assert (
        "service 'tools' cannot be started: [Errno 2] No such file or directory: 'no-such-program'"
        in failed.err
    )
    assert "services.tools.command" in failed.err
    assert not any(runs(pid) for pid in home.pids())


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({"command": "sleep 600", "log": "tasks.jsonl/tools.log"}, "services.tools.log names another"),
        ({"command": "true"}, "died (exit 0): it must stay in the foreground"),
    ],
    ids=["log", "background"],
)
def test_what_is_to_be_done_about_a_service_that_cannot_run_is_said(
    served: Callable[..., Served], service: dict[str, Any], message: str
) -> None:
    home = served()
    home.config["services"]["tools"] = service
    failed = home.collect()
    assert failed.code == 1
    assert message in failed.err
    assert not any(runs(pid) for pid in home.pids())


def test_a_service_that_floods_its_log_is_stopped_with_the_collector_that_is_killed(
    served: Callable[..., Served],
) -> None:
    home = served()
    (home.path / "closed").touch()
    flood = (
        "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()))\nwhile True: os.write(1, b'x' * 9999)"
    )
    command = [sys.executable, "-c", flood, str(home.path / "flood.pids")]
    home.config["services"]["flood"] = {"command": command, "log": "/dev/null"}
    running = home.start()
    running.until(lambda: len(home.pids()) == 4, "both are started")
    running.signal(signal.SIGKILL)
    wait_until_gone(home.pids())


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_service_that_dies_stops_the_run_which_goes_on_with_the_next_call(
    served: Callable[..., Served], workers: str
) -> None:
    home = with_a_world(served())
    (home.path / "hold").touch()
    running = home.start("--workers", workers)
    running.until(lambda: home.asked() == 4, "every rollout has left the environment for the model")
    os.kill(int((home.path / "world.pids").read_text().split()[0]), signal.SIGKILL)
    failed = running.wait()
    assert failed.code == 1
    assert "service 'world' died (SIGKILL)" in failed.err
    assert "  world is loading with no token" in failed.err
    assert "the same command goes on from there" in failed.err
    assert {rollout.status for rollout in home.project.rollouts("all")} == {"cancelled"}
    home.assert_none_is_left(started=2)
    (home.path / "hold").unlink()
    assert home.collect("--workers", workers).code == 0
    assert {rollout.reward for rollout in home.project.rollouts()} == {1.0}


def test_a_service_whose_supervisor_is_killed_is_gone_and_stops_the_run(
    served: Callable[..., Served],
) -> None:
    home = served()
    (home.path / "hold").touch()
    running = home.start()
    running.until((home.path / "asked").exists, "the model is asked")
    service, child, _ = home.pids()
    os.kill(int(Path(f"/proc/{service}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    failed = running.wait()
    assert failed.code == 1
    assert "service 'model' died (its supervisor was killed)" in failed.err
    wait_until_gone([service, child])


def test_two_runs_at_once_have_services_of_their_own(served: Callable[..., Served]) -> None:
    homes = [served(), served()]
    for home in homes:
        (home.path / "hold").touch()
        home.config["services"]["model"]["env"] = {"SECRET_TOKEN": "${PORT}"}
    both = [home.start() for home in homes]
    for home, running in zip(homes, both, strict=True):
        running.until((home.path / "asked").exists, "the model is asked")
    for home, running in zip(homes, both, strict=True):
        (home.path / "hold").unlink()
        assert running.wait().code == 0
        home.assert_none_is_left(started=1)
    assert homes[0].log() != homes[1].log()  # which say the port


def test_what_refuses_the_run_comes_before_any_service(served: Callable[..., Served]) -> None:
    home = served()
    assert home.collect().code == 0
    for flags in (["--max-turns", "7"], ["--set", "tasks.path=nothing.jsonl"]):
        assert home.collect(*flags).code == 2
    assert home.collect().code == 0  # nothing is left to do
    home.assert_none_is_left(started=1)


def test_services_that_run_already_are_used_and_left_running(served: Callable[..., Served]) -> None:
    home = served()
    refused = home.collect("--no-serve")
    assert refused.code == 2
    assert "say where it runs: --set services.model.url=http://HOST:PORT" in refused.err
    with ModelServer() as model:
        url = model.url.removesuffix("/v1")
        done = home.collect("--no-serve", "--set", f"services.model.url={url}")
        assert done.code == 0, done.err
        again = home.collect("--samples", "2", "--set", f"services.model.url={url}")
        assert again.code == 0, again.err
    assert len(home.project.rollouts()) == 8
    assert home.pids() == []


def test_a_port_that_is_taken_is_refused_rather_than_used(served: Callable[..., Served]) -> None:
    home = served()
    with ModelServer() as model:
        port = model.port
        home.config["services"]["model"]["port"] = port
        failed = home.collect()
        assert failed.code == 1
        assert f"service 'model' cannot be started: port {port} is taken" in failed.err
        assert home.collect("--no-serve").code == 0


async def test_a_program_has_its_services_too(served: Callable[..., Served]) -> None:
    home = served()
    home.config |= {"tasks": str(home.path / "tasks.jsonl"), "out": str(home.run)}
    (home.path / "run.yaml").write_text(yaml.safe_dump(home.config), encoding="utf-8")
    async with aclosing(windrow.collect(config=home.path / "run.yaml", concurrency=1)) as stream:
        rollout = await anext(stream)
    assert rollout.status == "completed"
    home.assert_none_is_left(started=1)
    assert len(json.loads((home.run / "run.json").read_text())["config"]["services"]) == 1
