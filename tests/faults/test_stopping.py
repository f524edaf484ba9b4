"""Signals beyond the first: SIGTERM again, a process that is stopped and continued, a loop that is held up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.faults.conftest import Bench, Door
from tests.support.command_process import PATIENCE_S, Project, Running
from tests.support.raw_server import WireServer

pytestmark = pytest.mark.slow

STUBBORN = """
import asyncio

async def agent(session):
    await session.complete()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
"""


class SocksProxy:
    """A model that answers once the gate is open; `waiting` counts those who stand before it."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.waiting = 0
        self._counting = threading.Lock()

    def __call__(self, body: dict[str, Any], n: int) -> str:
        with self._counting:
            self.waiting += 1
        self.opened.wait(PATIENCE_S)
        return "42"


@pytest.fixture
def gate() -> Iterator[SocksProxy]:
    made = SocksProxy()
    yield made
    made.opened.set()


@pytest.fixture
def home(gate: SocksProxy, project: Callable[..., Project]) -> Iterator[Project]:
    yield project(gate)
    gate.opened.set()  # the server waits for its answers before it stops


def begun(home: Project, gate: SocksProxy, *flags: str) -> Running:
    running = home.start_collect("--concurrency", "3", *flags)
    running.until(lambda: gate.waiting == 3, "three requests were waiting")
    return running


def finished(home: Project, gate: SocksProxy, *flags: str) -> None:
    """The same command ends the run, and nothing stands there twice."""
    gate.opened.set()
    assert home.collect("--concurrency", "3", *flags).code == 0
    attempts = [(line["id"], line["attempt"]) for line in home.lines()]
    assert len(attempts) == len(set(attempts))
    assert [rollout.reward for rollout in home.rollouts()] == [1.0] * 6


def test_a_second_sigterm_cancels_what_runs(home: Project, gate: SocksProxy) -> None:
    running = begun(home, gate)
    running.signal(signal.SIGTERM)
    running.until_said("stopping: 3 running rollouts are finished first")

    def told_again() -> bool:
        if running.process.poll() is None:
            running.signal(signal.SIGTERM)
        return "cancelling what is running" in running.err

    running.until(told_again, "it cancelled")
    ended = running.wait()
    assert ended.code == 143
    assert "6 not done (stopped): the same command continues" in ended.err
    assert [(line["status"], line["reason"]) for line in home.lines()] == [("cancelled", "interrupted")] * 3
    finished(home, gate)


AT_ONCE = """
from windrow.cli import signals

signals.SAME_SIGNAL_S *= 600  # however slow the test is, it sends the second one at once

async def agent(session):
    await session.complete()
"""


def test_a_sigterm_that_comes_twice_at_once_is_one(home: Project, gate: SocksProxy) -> None:
    """So does `timeout` send it: to the process, and to its group."""
    home.module("at_once", AT_ONCE)
    flags = ("--agent", "at_once:agent")
    running = begun(home, gate, *flags)
    running.signal(signal.SIGTERM)
    running.until_said("stopping: 3 running rollouts are finished first")
    running.signal(signal.SIGTERM)
    gate.opened.set()
    ended = running.wait()
    assert ended.code == 143
    assert [line["status"] for line in home.lines()] == ["completed"] * 3
    finished(home, gate, *flags)


def test_ctrl_c_twice_ends_a_run_whose_agent_ignores_it(home: Project, gate: SocksProxy) -> None:
    home.module("stubborn", STUBBORN)
    gate.opened.set()
    flags = ("--concurrency", "3", "--agent", "stubborn:agent")
    running = home.start_collect(*flags)
    running.until(lambda: home.server.completions == 3, "three agents had asked")
    running.signal(signal.SIGINT)
    running.until_said("stopping: 3 running")
    running.signal(signal.SIGINT)
    ended = running.wait()
    assert ended.code == 130
    assert [(line["status"], line["reason"]) for line in home.lines()] == [("cancelled", "interrupted")] * 3
    assert "Traceback" not in ended.err


STUCK = """
import pathlib

async def agent(session):
    reply = await session.complete()
    if session.task.key != "q0":
        pathlib.Path("held").touch()  # from here on it never gives the loop back
    while session.task.key != "q0" and not pathlib.Path("mended").exists():
        pass
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_held_up_without_end_says_by_what_and_ends(
    home: Project, gate: SocksProxy, number: signal.Signals, code: int
) -> None:
    home.module("stuck", STUCK)
    gate.opened.set()
    flags = ("--concurrency", "1", "--agent", "stuck:agent")
    running = home.start_collect(*flags)
    running.until(
        lambda: (home.path / "held").exists() and len(home.lines()) == 1, "the second one was stuck"
    )

    def ended_by_signals() -> bool:
        if "ending: " not in running.err:
            running.signal(number)
        return running.process.poll() is not None

    running.until(ended_by_signals, "it ended")
    ended = running.wait()
    assert ended.code == code
    assert "stuck.py:" in ended.err
    assert "holds up the run. What is recorded is safe" in ended.err
    assert "Traceback" not in ended.err
    before = home.lines()
    assert [line["status"] for line in before] == ["completed"]

    (home.path / "mended").touch()
    assert home.collect(*flags).code == 0
    assert home.lines()[:1] == before
    assert len(home.lines()) == 6


LAST_WORD = """
import os
import signal

class LastWord:
    def __del__(self, kill=os.kill, us=os.getpid(), number=signal.SIGINT):
        kill(us, number)  # the interpreter has given up its handlers by now

kept = LastWord()

async def agent(session):
    await session.complete()
"""


def test_a_signal_while_a_stopped_command_goes_away_does_not_change_how_it_ends(
    home: Project, gate: SocksProxy
) -> None:
    home.module("last", LAST_WORD)
    running = home.start_collect("--concurrency", "1", "--agent", "last:agent")
    running.until(lambda: home.server.completions == 1, "it was asked")
    running.signal(signal.SIGINT)
    running.until_said("stopping: 1 running")
    gate.opened.set()
    assert running.wait().code == 130


def stopped_for_a_while(running: Running, seconds: float) -> None:
    """The process stands still for so long; the clock does not."""
    running.signal(signal.SIGSTOP)
    threading.Event().wait(seconds)
    running.signal(signal.SIGCONT)


def test_a_process_that_was_stopped_goes_on_where_it_was(home: Project, gate: SocksProxy) -> None:
    running = begun(home, gate)
    stopped_for_a_while(running, 0.5)
    gate.opened.set()
    assert running.wait().code == 0
    assert [(line["status"], line["attempt"]) for line in home.lines()] == [("completed", 1)] * 6
    assert home.server.completions == 6


def test_calls_whose_time_ran_out_while_the_process_was_stopped_are_made_again(
    home: Project, gate: SocksProxy
) -> None:
    """The time of a call is the time of the day: those that were under way fail, and are attempted anew."""
    running = home.start_collect("--concurrency", "3", "--call-timeout", "2", "--retries", "99")
    running.until(lambda: gate.waiting >= 3, "three requests were waiting")
    stopped_for_a_while(running, 2.5)
    running.until(lambda: gate.waiting >= 6, "they were asked again")
    gate.opened.set()
    ended = running.wait()
    assert ended.code == 0
    failed = [line for line in home.lines() if line["status"] == "failed"]
    assert f"{len(failed)} × infra/call_timeout" in ended.err
    assert {line["error"]["kind"] for line in failed} == {"call_timeout"}
    assert len([line for line in failed if line["attempt"] == 1]) >= 3
    assert [rollout.reward for rollout in home.rollouts()] == [1.0] * 6


def test_after_a_run_signals_do_what_they_did_before(bench: Bench, served: Callable[..., WireServer]) -> None:
    served(Door(None))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert bench.collect().code == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
