"""`--workers N`: the same run in several processes, whichever of them is killed, stopped or cannot begin."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.command_process import PATIENCE_S, Outcome, Project, Running, prompt_of
from tests.support.response_valve import Valve
from tests.support.task_reading import lines_are_unique, records
from windrow.errors import UsageError

pytestmark = pytest.mark.slow

TASKS, SAMPLES = 40, 4
PLANNED = TASKS * SAMPLES
KILLS = 20
GONE_S = 30.0  # the kernel kills them; this is for the machine to come to it
AT_ONCE = 4  # in a run that is killed: more would be done before the last kill

JUDGE = """
def judge(task, reply):
    return len(reply)

judge.after_commit = True
judge.version = 1
"""
NOISY = """
from windrow import Env, Observation, Step

class Noisy(Env):
    version = 1

    async def reset(self, task):
        print("this is not JSON")
        return Observation([{"role": "user", "content": task["prompt"]}])

    async def step(self, reply, results):
        return Step(done=True, reward=1.0)
"""


TELLING = """
from windrow import Env, Observation, Score, Step

KEY = "sk-0123456789-told"

class Telling(Env):
    version = 1

    async def reset(self, task):
        self.ctx.redact(KEY)
        return Observation([{"role": "user", "content": f"the key is {KEY}"}])

    async def step(self, reply, results):
        return Step(done=True)

class Failing(Telling):
    async def step(self, reply, results):
        raise ValueError(f"{KEY} was refused")

def quoting(task, reply):
    return Score(1.0, evidence=f"it said {reply}")

quoting.after_commit = True
quoting.version = 1
"""


def reply(body: dict[str, Any], n: int) -> Any:
    number = int(prompt_of(body).split()[-1])
    if number == 7:
        return 400, {}, {"error": {"message": "this one is not for me"}}
    if body.get("seed", 1) % 9 == 0:
        return 503, {}, {"error": {"message": "overloaded"}}
    return str(number)


@pytest.fixture
def valve() -> Valve:
    return Valve()


@pytest.fixture
def home(project: Callable[..., Project], valve: Valve) -> Project:
    made = project(valve.before(reply), latency_s=0.02)
    made.module("judging", JUDGE)
    made.tasks({"prompt": f"what is {n}", "answer": str(n)} for n in range(TASKS))
    return made


def collector(home: Project, out: str, *flags: str) -> Running:
    usual = [
        "-k",
        str(SAMPLES),
        "--seeds",
        "id",
        "--out",
        out,
        "--call-retries",
        "0",
        "--retries",
        "5",
        "--quiet",
    ]
    return home.start_collect(*usual, "--scorer", "number", "--scorer", "judging:judge=0.25", *flags)


def segments(run: Path) -> list[str]:
    return sorted(file.name for file in run.glob("rollouts.*jsonl") if file.stat().st_size)


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def written(run: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in run.glob("rollouts*.jsonl"))


def test_workers_collect_what_one_process_does_each_into_a_segment_of_its_own(home: Project) -> None:
    assert collector(home, "one").wait().code == 1  # the refused task is not done
    several = collector(home, "two", "--workers", "2").wait()
    assert several.code == 1, several.err
    assert segments(home.path / "one") == ["rollouts.jsonl"]
    assert segments(home.path / "two") == ["rollouts.w0.jsonl", "rollouts.w1.jsonl"]
    assert records(home.path / "two") == records(home.path / "one")
    assert lines_are_unique(home.path / "two")
    assert {rollout.grade for rollout in home.rollouts(run=home.path / "two") if rollout.done} == {"graded"}


def test_a_parent_that_is_killed_again_and_again_leaves_no_orphan_and_loses_and_doubles_nothing(
    home: Project, valve: Valve
) -> None:
    assert collector(home, "whole").wait().code == 1
    run = home.path / "killed"
    asked_before = home.server.completions
    landed = 0
    for kill in range(KILLS):
        enough = min(written(run) + 1 + kill % 5, PLANNED - 20)
        running = collector(home, "killed", "--workers", "2", "--concurrency", str(AT_ONCE))
        with valve.shut_once(lambda: written(run) >= enough):  # noqa: B023
            running.until(lambda: written(run) >= enough, f"{enough} lines")  # noqa: B023
            orphans = children(running.pid)
            running.signal(signal.SIGKILL)
            assert running.wait().code == -signal.SIGKILL
        deadline = time.monotonic() + GONE_S
        while any(map(is_alive, orphans)):
            assert time.monotonic() < deadline, "a worker outlived its parent"
            time.sleep(0.01)
        landed += len(orphans) == 2
    assert landed >= KILLS * 3 // 4  # the others came before the workers were started
    assert collector(home, "killed", "--workers", "2").wait().code == 1
    assert records(run) == records(home.path / "whole")
    assert lines_are_unique(run)
    committed = Counter(line["seed"] for segment in segments(run) for line in home.lines(segment, run=run))
    assert set(committed.values()) == {1}
    assert (
        home.server.completions - asked_before < 2 * PLANNED + KILLS * AT_ONCE
    )  # only what was in flight is asked again


def test_a_worker_that_is_killed_costs_only_what_it_was_running(home: Project, valve: Valve) -> None:
    running = collector(home, "run", "--workers", "2")
    with valve.shut_once(lambda: len(segments(home.run)) == 2):
        running.until(lambda: len(segments(home.run)) == 2, "both have written")
        victim = children(running.pid)[0]
        os.kill(victim, signal.SIGKILL)
    ended = running.wait()
    assert ended.code == 1
    assert "worker w0 died (SIGKILL)" in ended.err or "worker w1 died (SIGKILL)" in ended.err
    done = {rollout.id for rollout in home.rollouts() if rollout.done}
    assert PLANNED - SAMPLES - 8 <= len(done) < PLANNED
    assert collector(home, "run", "--workers", "2").wait().code == 1
    assert len({rollout.id for rollout in home.rollouts() if rollout.done}) == PLANNED - SAMPLES
    assert lines_are_unique(home.run)


def test_a_run_may_go_on_with_another_number_of_workers_or_none(home: Project) -> None:
    flags = ("--limit", "10")
    assert collector(home, "run", "--workers", "3", *flags).wait().code == 1
    asked = home.server.completions
    assert collector(home, "run", *flags).wait().code == 1
    assert home.server.completions == asked
    assert collector(home, "run", "--limit", "20").wait().code == 1
    assert collector(home, "run", "--workers", "2").wait().code == 1
    assert len({rollout.id for rollout in home.rollouts() if rollout.done}) == PLANNED - SAMPLES
    assert lines_are_unique(home.run)


def test_an_attempt_that_fails_in_a_worker_goes_on_counting_in_the_next_call(
    project: Callable[..., Project],
) -> None:
    home = project(lambda body, n: (503, {}, {"error": {"message": "overloaded"}}))
    home.tasks({"prompt": f"what is {n}"} for n in range(4))
    flags = ("--workers", "2", "--call-retries", "0", "--retries", "1")
    for _ in range(2):
        assert home.collect(*flags).code == 1
    attempts = sorted(rollout.attempt for rollout in home.rollouts("all"))
    assert attempts == sorted([1, 2, 3, 4] * 4)


class SocksProxy:
    """Holds every answer back until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.waiting = 0

    def __call__(self, body: dict[str, Any], n: int) -> str:
        self.waiting += 1
        assert self.opened.wait(PATIENCE_S)
        return "42"


@pytest.fixture
def gate() -> Iterator[SocksProxy]:
    made = SocksProxy()
    yield made
    made.opened.set()


def held(project: Callable[..., Project], gate: SocksProxy) -> tuple[Project, Running]:
    """A run of two workers in which four answers are waited for."""
    home = project(gate)
    home.tasks({"prompt": f"what is {n}"} for n in range(12))
    running = home.start_collect("--workers", "2", "--concurrency", "4")
    running.until(lambda: gate.waiting == 4, "four calls are under way")
    return home, running


def test_one_signal_lets_the_workers_finish_what_they_run(
    project: Callable[..., Project], gate: SocksProxy
) -> None:
    home, running = held(project, gate)
    running.signal(signal.SIGINT)
    running.until_said("finished first")
    gate.opened.set()
    ended = running.wait()
    assert ended.code == 130
    assert [line["status"] for name in segments(home.run) for line in home.lines(name)] == ["completed"] * 4
    assert home.server.completions == 4


def test_a_second_signal_cancels_what_the_workers_run_and_records_it(
    project: Callable[..., Project], gate: SocksProxy
) -> None:
    home, running = held(project, gate)
    running.signal(signal.SIGINT)
    running.until_said("finished first")
    running.signal(signal.SIGINT)
    assert running.wait().code == 130
    cut = [line for name in segments(home.run) for line in home.lines(name)]
    assert [(line["status"], line["reason"]) for line in cut] == [("cancelled", "interrupted")] * 4


def test_an_endpoint_that_cannot_serve_is_told_as_by_one_process(project: Callable[..., Project]) -> None:
    home = project()
    home.tasks([{"prompt": "hello"}] * 4)
    flags = ("collect", "tasks.jsonl", "--model", "another", "--base-url", "http://127.0.0.1:9/v1")
    one = home.windrow(*flags, "--out", "one")
    two = home.windrow(*flags, "--out", "two", "--workers", "2")
    assert one.code == 1
    assert len(said(one)) == 1
    assert (two.code, said(two)) == (one.code, said(one))


def said(ended: Outcome) -> list[str]:
    return [line for line in ended.err.splitlines() if "cannot reach" in line]


def test_what_an_environment_prints_does_not_reach_the_stream_of_rollouts(
    project: Callable[..., Project],
) -> None:
    home = project()
    home.module("noisy", NOISY)
    home.tasks({"prompt": f"what is {n}"} for n in range(6))
    ended = home.collect("--env", "noisy:Noisy", "--workers", "2", "--json")
    assert ended.code == 0, ended.err
    rollouts = [json.loads(line) for line in ended.out.splitlines()]
    assert {rollout["reward"] for rollout in rollouts} == {1.0}
    assert all(rollout["messages"] and rollout["task"]["data"] for rollout in rollouts)
    assert len(rollouts) == 6
    assert "this is not JSON" in ended.err


def test_what_an_environment_redacts_in_a_worker_is_in_no_verdict_of_the_parent(
    project: Callable[..., Project],
) -> None:
    home = project(lambda body, n: prompt_of(body))
    home.module("telling", TELLING)
    home.tasks({"prompt": f"what is {n}"} for n in range(4))
    ended = home.collect(
        "--workers", "2", "--env", "telling:Telling", "--scorer", "telling:quoting", "--json"
    )
    assert ended.code == 0, ended.err
    files = [file.read_text() for file in home.run.rglob("*") if file.is_file()]
    assert not any("sk-0123456789" in text for text in (*files, ended.out, ended.err))
    assert any("it said the key is [redacted]" in text for text in files)


def test_what_an_environment_redacts_in_a_worker_is_in_no_error_that_the_parent_shows(
    project: Callable[..., Project],
) -> None:
    home = project()
    home.module("telling", TELLING)
    home.tasks({"prompt": f"what is {n}"} for n in range(4))
    ended = home.collect("--workers", "2", "--env", "telling:Failing", "--retries", "0")
    assert ended.code == 1, ended.err
    assert "4 × env/ValueError, such as: [redacted] was refused" in ended.err
    assert "sk-0123456789" not in ended.err


def test_the_counts_of_workers_are_those_of_one_process(home: Project) -> None:
    flags = ("-k", "4", "--seeds", "id", "--call-retries", "0", "--retries", "5", "--scorer", "number")
    one = home.collect(*flags, "--out", "one")
    two = home.collect(*flags, "--out", "two", "--workers", "2")
    assert one.code == two.code == 1
    assert counts(two) == counts(one)
    assert any("× infra/http_503, such as:" in line for line in counts(one))
    saved = [json.loads((home.path / run / "run.json").read_text())["counts"] for run in ("one", "two")]
    assert saved[0] == saved[1]


def counts(ended: Outcome) -> list[str]:
    """What a command says at its end of how many were done, and what failed."""
    said = ended.err.splitlines()
    first = next(n for n, line in enumerate(said) if " done, " in line and " attempts " in line)
    return sorted(said[first : next(n for n, line in enumerate(said) if line.startswith("run "))])


def test_too_many_failures_in_workers_stop_the_run(project: Callable[..., Project]) -> None:
    home = project(lambda body, n: (400, {}, {"error": {"message": "this one is not for me"}}))
    home.tasks({"prompt": f"what is {n}"} for n in range(400))
    stopped = home.collect("--workers", "2", "--max-failure-rate", "0.5", "--quiet")
    assert stopped.code == 1
    some = sum(1 for name in segments(home.run) for _ in home.lines(name))
    assert 20 <= some < 400


def test_a_budget_and_the_limit_of_an_environment_hold_over_all_workers(
    project: Callable[..., Project],
) -> None:
    home = project("42", latency_s=0.01)
    home.tasks({"prompt": f"what is {n}"} for n in range(60))
    flags = ("--workers", "2", "--budget-tokens", "100")
    stopped = home.collect(*flags)
    assert stopped.code == 3, stopped.err
    assert "the budget of 100 tokens is used up" in stopped.err
    some = sum(1 for name in segments(home.run) for _ in home.lines(name))
    assert 0 < some < 60
    assert home.server is not None
    home.server.peak_in_flight = 0
    assert home.collect("--workers", "2", "--env-concurrency", "problem=1").code == 0
    assert len(home.rollouts()) == 60
    assert home.server.peak_in_flight == 1


async def test_groups_come_out_whole_and_graded(project: Callable[..., Project]) -> None:
    home = project("42")
    rows = [{"prompt": f"what is {n}", "answer": "42"} for n in range(5)]
    found = [
        group
        async for group in windrow.collect(
            rows,
            model="stub",
            base_url=home.server.url if home.server else "",
            samples=3,
            workers=2,
            groups=True,
            out=str(home.run),
        )
    ]
    assert sorted(group.task["prompt"] for group in found) == sorted(row["prompt"] for row in rows)
    assert {group.rewards for group in found} == {(1.0, 1.0, 1.0)}


async def test_an_object_that_workers_cannot_have_is_refused(tmp_path: Path) -> None:
    def mine(task: windrow.Task, reply: str) -> float:
        return 1.0

    with pytest.raises(UsageError, match=r"scorers was given as an object.*name it as module:name"):
        async for _ in windrow.collect(
            [{"prompt": "hello"}], model="m", base_url="http://127.0.0.1:9/v1", scorers=[mine], workers=2
        ):
            pass
