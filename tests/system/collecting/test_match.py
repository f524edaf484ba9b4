"""Matches in real processes: killed, resumed, stopped, and spread over workers."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_process import Project, Running
from tests.support.task_reading import records

pytestmark = pytest.mark.slow

SEATS, ROUNDS, TASKS, SAMPLES = 3, 2, 12, 3
EPISODES = TASKS * SAMPLES
GAME = """
from windrow import Match, Observation, Step

class Counting(Match):
    version = 1
    seats = 3

    async def reset(self, task):
        self.moves = 0

    def to_act(self):
        return [self.moves % 3] if self.moves < 6 else []

    async def observe(self, seat):
        return Observation([{"role": "user", "content": f"{self.ctx.id} seat {seat} move {self.moves}"}])

    async def act(self, replies):
        [(seat, reply)] = replies.items()
        assert reply.text == f"{self.ctx.id} seat {seat} move {self.moves}", reply.text
        self.moves += 1
        return {seat: Step(reward=float(self.moves), state={"moves": self.moves})}
"""


def reply(body: dict[str, Any], n: int) -> Any:
    """Echoes; now and then a call fails, which fails its episode."""
    if body["seed"] % 23 == 0:
        return 503, {}, {"error": {"message": "overloaded"}}
    return str(body["messages"][-1]["content"])


@pytest.fixture
def home(project: Callable[..., Project]) -> Project:
    made = project(reply, latency_s=0.01)
    made.module("game", GAME)
    made.tasks({"id": f"game {n}"} for n in range(TASKS))
    return made


def collector(home: Project, out: str, *flags: str) -> Running:
    usual = ["--env", "game:Counting", "-k", str(SAMPLES), "--seeds", "id", "--out", out]
    usual += ["--call-retries", "0", "--retries", "9", "--quiet"]
    return home.start_collect(*usual, *flags)


def logs(run: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for log in sorted(run.glob("rollouts*.jsonl"))
        for line in log.read_bytes().splitlines()
    ]


def seats_stand_together(run: Path) -> None:
    lines = logs(run)
    assert [line["seat"] for line in lines] == [0, 1, 2] * (len(lines) // SEATS)
    for first in range(0, len(lines), SEATS):
        episode = lines[first : first + SEATS]
        assert len({(line["episode"], line["attempt"]) for line in episode}) == 1
        assert len({line["status"] == "failed" for line in episode}) == 1


def seats_never_mix(run: Path) -> None:
    for line in logs(run):
        said = " ".join(str(message["content"]) for message in line["messages"])
        assert set(re.findall(r"(\w{24}) seat (\d)", said)) <= {(line["episode"], str(line["seat"]))}


def test_a_run_of_matches_that_is_killed_ends_like_one_that_never_was(home: Project) -> None:
    assert collector(home, "uninterrupted").wait().code == 0
    log = home.path / "killed" / "rollouts.jsonl"
    for lines in (1, 17, 40, 71):
        running = collector(home, "killed")
        running.until(lambda: log.exists() and log.read_bytes().count(b"\n") >= lines, f"{lines} lines")  # noqa: B023
        running.signal(signal.SIGKILL)
        running.wait()
    assert collector(home, "killed").wait().code == 0
    assert records(home.path / "killed") == records(home.path / "uninterrupted")
    for run in ("killed", "uninterrupted"):
        seats_stand_together(home.path / run)
        seats_never_mix(home.path / run)
    finals = [line for line in logs(home.path / "killed") if line["status"] == "completed"]
    assert len(finals) == EPISODES * SEATS


def test_workers_play_the_same_matches(home: Project) -> None:
    assert collector(home, "alone").wait().code == 0
    assert collector(home, "many", "--workers", "3").wait().code == 0
    assert records(home.path / "many") == records(home.path / "alone")
    assert len(list((home.path / "many").glob("rollouts.w*.jsonl"))) == 3
    seats_stand_together(home.path / "many")
    seats_never_mix(home.path / "many")


def test_a_second_ctrl_c_cancels_whole_episodes_and_the_next_call_runs_them_again(home: Project) -> None:
    log = home.path / "stopped" / "rollouts.jsonl"
    running = collector(home, "stopped")
    running.until(lambda: log.exists() and log.read_bytes().count(b"\n") >= SEATS, "an episode")
    running.signal(signal.SIGINT)
    running.signal(signal.SIGINT)
    running.wait()
    seats_stand_together(home.path / "stopped")
    assert collector(home, "stopped").wait().code == 0
    finals = [line for line in logs(home.path / "stopped") if line["status"] == "completed"]
    assert len(finals) == EPISODES * SEATS
