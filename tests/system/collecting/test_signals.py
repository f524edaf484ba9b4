"""Stopping from outside: the first signal drains, a second Ctrl-C cancels, and the exit code says which it was."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.command_process import PATIENCE_S, Project, prompt_of

pytestmark = pytest.mark.slow

TWO_TURNS = """
from windrow import Env, Observation, Step

class TwoTurns(Env):
    version = 1

    async def reset(self, task):
        self.replies = 0
        return Observation([{"role": "user", "content": task["prompt"]}])

    async def step(self, reply, results):
        self.replies += 1
        if self.replies == 2:
            return Step(done=True, reward=1.0)
        return Step(messages=[{"role": "user", "content": "go on"}], reward=0.5, state={"replies": self.replies})

    async def close(self):
        with open("closed", "a") as file:
            file.write("x")
"""
SLOW_JUDGE = """
import asyncio, pathlib, time

async def patient(task, reply):
    pathlib.Path("judging").touch()
    while not pathlib.Path("verdict").exists():
        await asyncio.sleep(0.01)
    return 1.0

def blocking(task, reply):
    pathlib.Path("judging").touch()
    while not pathlib.Path("verdict").exists():
        time.sleep(0.01)
    return 1.0

patient.after_commit = blocking.after_commit = True
"""


class SocksProxy:
    """A model whose answers from turn `held` on wait until the gate is opened; `waiting` counts them."""

    def __init__(self, held: int = 0) -> None:
        self.held = held
        self.opened = threading.Event()
        self.waiting = 0
        self._counting = threading.Lock()

    def __call__(self, body: dict[str, Any], n: int) -> str:
        if sum(message["role"] == "assistant" for message in body["messages"]) >= self.held:
            with self._counting:
                self.waiting += 1
            self.opened.wait(PATIENCE_S)
        return f"{prompt_of(body)} is 42"


@pytest.fixture
def gate() -> SocksProxy:
    return SocksProxy()


@pytest.fixture
def home(gate: SocksProxy, project: Callable[..., Project]) -> Iterator[Project]:
    made = project(gate)
    made.module("two_turns", TWO_TURNS)
    made.tasks({"prompt": f"number {n}", "answer": "42"} for n in range(10))
    yield made
    gate.opened.set()  # the server waits for its answers before it stops


FLAGS = ("--concurrency", "3", "--scorer", "number")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_lets_what_runs_finish_and_starts_nothing_more(
    number: signal.Signals, code: int, home: Project, gate: SocksProxy
) -> None:
    running = home.start_collect(*FLAGS)
    running.until(lambda: gate.waiting == 3, "three requests were waiting")
    running.signal(number)
    running.until_said("stopping: 3 running rollouts are finished first")
    gate.opened.set()
    ended = running.wait()
    assert ended.code == code
    assert "7 not done (stopped): the same command continues" in ended.err
    assert [line["status"] for line in home.lines()] == ["completed"] * 3
    assert [line["reward"] for line in home.lines()] == [1.0] * 3
    assert home.server.completions == 3

    assert home.collect(*FLAGS).code == 0
    assert home.server.completions == 10
    assert {line["attempt"] for line in home.lines()} == {1}


def test_a_second_ctrl_c_cancels_and_the_next_call_runs_it_again(home: Project, gate: SocksProxy) -> None:
    gate.held = 1  # the first turn is answered, the second is not
    flags = (*FLAGS, "--env", "two_turns:TwoTurns")
    running = home.start_collect(*flags)
    running.until(lambda: gate.waiting == 3, "three second turns were waiting")
    running.signal(signal.SIGINT)
    running.until_said("Ctrl-C again cancels them")
    running.signal(signal.SIGINT)
    ended = running.wait()
    assert ended.code == 130
    assert "cancelling what is running" in ended.err
    cancelled = home.lines()
    assert len(cancelled) == 3
    for line in cancelled:
        assert (line["status"], line["stop"], line["reason"]) == ("cancelled", "cancelled", "interrupted")
        assert (line["reward"], line["grade"], line["attempt"]) == (None, "none", 1)
        assert [message["role"] for message in line["messages"]] == ["user", "assistant", "user"]
        assert line["turns"][0]["reward"] == 0.5
        assert line["state"] == {"replies": 1}
    assert (home.path / "closed").read_text() == "xxx"

    gate.opened.set()
    assert home.collect(*flags).code == 0
    attempts = {rollout.id: rollout.attempt for rollout in home.rollouts()}
    assert len(attempts) == 10
    assert {id: attempts[id] for id in attempts if attempts[id] > 1} == {line["id"]: 2 for line in cancelled}
    assert {rollout.reward for rollout in home.rollouts()} == {2.5}


def test_ctrl_c_after_sigterm_cancels_and_the_first_signal_names_the_exit(
    home: Project, gate: SocksProxy
) -> None:
    running = home.start_collect(*FLAGS)
    running.until(lambda: gate.waiting == 3, "three requests were waiting")
    running.signal(signal.SIGTERM)
    running.until_said("stopping: 3 running")
    running.signal(signal.SIGINT)
    assert running.wait().code == 143
    assert [line["reason"] for line in home.lines()] == ["interrupted"] * 3


def test_a_stopped_run_makes_no_new_attempt_of_what_fails_while_it_drains(
    home: Project, gate: SocksProxy
) -> None:
    home.server.reply = lambda body, n: gate(body, n) and (503, {}, {"error": {"message": "gone"}})
    running = home.start_collect(*FLAGS, "--retries", "5", "--call-retries", "0")
    running.until(lambda: gate.waiting == 3, "three requests were waiting")
    running.signal(signal.SIGINT)
    running.until_said("stopping")
    gate.opened.set()
    assert running.wait().code == 130
    assert [(line["status"], line["attempt"]) for line in home.lines()] == [("failed", 1)] * 3
    assert home.server.completions == 3


@pytest.mark.parametrize("judge", ["patient", "blocking"])
def test_ctrl_c_twice_in_the_grading_keeps_the_rollout_and_leaves_its_grading_to_the_next_call(
    judge: str, project: Callable[..., Project]
) -> None:
    home = project()
    home.module("judges", SLOW_JUDGE)
    home.tasks([{"prompt": "six times seven"}])
    running = home.start_collect("--scorer", f"judges:{judge}", "--score-timeout", "600")
    running.until((home.path / "judging").exists, "the judge was asked")
    running.signal(signal.SIGINT)
    running.until_said("stopping")
    running.signal(signal.SIGINT)
    assert running.wait().code == 130
    assert [line["grade"] for line in home.lines()] == ["pending"]
    assert home.lines("scores.jsonl") == []

    (home.path / "verdict").touch()
    assert home.collect("--scorer", f"judges:{judge}").code == 0
    assert [(rollout.attempt, rollout.reward) for rollout in home.rollouts()] == [(1, 1.0)]
    assert home.server.completions == 1


def test_ctrl_c_twice_ends_a_command_whose_endpoint_does_not_answer_the_probe(
    home: Project, gate: SocksProxy
) -> None:
    running = home.start_collect("--model", "another", "--set", "policy.probe_timeout_s=600")
    running.until(
        lambda: gate.waiting == 1, "the probe was waiting"
    )  # the model is not listed, so it is asked
    running.signal(signal.SIGINT)
    running.until_said("stopping: 0 running rollouts")
    running.signal(signal.SIGINT)
    ended = running.wait()
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert home.lines() == []


def test_a_full_disk_while_draining_is_the_error_that_is_shown(home: Project, gate: SocksProxy) -> None:
    import resource

    slow = threading.Event()

    def answer(body: dict[str, Any], n: int) -> str:
        gate(body, n)
        if n:
            slow.wait(PATIENCE_S)  # still running when the first one's line does not fit
        return "42 " * 20_000

    home.server.reply = answer
    limit = (30_000, 30_000)
    running = home.start_collect(*FLAGS, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    try:
        running.until(lambda: gate.waiting == 3, "three requests were waiting")
        running.signal(signal.SIGINT)
        running.until_said("stopping")
        gate.opened.set()
        ended = running.wait()
    finally:
        slow.set()
    assert ended.code == 1
    assert "cannot write run/rollouts.jsonl" in ended.err
    assert "Traceback" not in ended.err


def test_quiet_silences_progress_and_never_errors(project: Callable[..., Project]) -> None:
    home = project()
    home.tasks([{"prompt": "six times seven", "answer": "42"}])
    assert home.collect("--quiet") == (0, "", "")
    refused = home.collect("--quiet", "--temperature", "0.5")
    assert refused.code == 2
    assert "temperature" in refused.err
    home.server.stop()
    unreachable = home.collect("--quiet", "-k", "2")
    assert unreachable.code == 1
    assert "cannot reach" in unreachable.err
