"""`kill -9` at any moment, then the same command: the result equals an uninterrupted run.

The collector is a real process and so is its death. What it asks for is counted by the server, by the seed that each
attempt sends: a rollout whose line stood in the log when the collector died is never asked for again.
"""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_process import Project, Running, prompt_of
from tests.support.model_server import ModelServer
from tests.support.response_valve import Valve
from tests.support.task_reading import lines_are_unique, records

pytestmark = pytest.mark.slow

TASKS, SAMPLES = 36, 3
PLANNED = TASKS * SAMPLES
RUNS = 5
KILLS = 11  # a run: one as it opens the run directory, the others in mid-run
LANDED = 9  # a run: kills that must have found something committed, and not all
assert RUNS * KILLS >= 50
assert RUNS * LANDED >= 40

LOGS = ("rollouts.jsonl", "scores.jsonl", "tasks.jsonl")
JUDGE = """
def judge(task, reply):
    return len(reply)

judge.after_commit = True
judge.version = 1
"""


def reply(body: dict[str, Any], n: int) -> Any:
    """By prompt and seed alone: most attempts are answered, some fail once or twice, one task is refused."""
    number = int(prompt_of(body).split()[-1])
    if number == 17:
        return 400, {}, {"error": {"message": "this one is not for me"}}
    if body["seed"] % 9 == 0:
        return 503, {}, {"error": {"message": "overloaded"}}
    return str(number + body["seed"] % 2)


def furnish(home: Project) -> None:
    home.module("judging", JUDGE)
    home.tasks({"prompt": f"what is {n}", "answer": str(n)} for n in range(TASKS))


def without_address(home: Project, run: str) -> Any:
    """The records of a run, in which errors name the server."""
    assert home.server is not None
    return json.loads(json.dumps(records(home.path / run)).replace(home.server.url, "http://server"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The records of a run to which nothing happened."""
    with ModelServer(reply) as server:
        home = Project(tmp_path_factory.mktemp("uninterrupted"), server)
        furnish(home)
        assert collector(home, "run").wait().code == 1  # the refused task alone is not done
        return without_address(home, "run")


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_run_that_is_killed_again_and_again_ends_like_one_that_never_was(
    seed: int, project: Callable[..., Project], uninterrupted: Any
) -> None:
    valve = Valve()
    home = project(valve.before(reply), latency_s=0.02)
    furnish(home)
    before = home.server.completions

    moments = seeded_moments(seed)
    landed = 0
    kept: dict[str, bytes] = dict.fromkeys(LOGS, b"")
    committed: set[int] = set()
    for moment in moments:
        running = collector(home, "killed")
        moment.first_request = home.server.completions
        with valve.shut_once(lambda: moment.has_come(home, running)):  # noqa: B023
            running.until(lambda: moment.has_come(home, running), str(moment))  # noqa: B023
            running.signal(signal.SIGKILL)
            assert running.wait().code == -signal.SIGKILL
        kept = {name: still_begins_with(home.path / "killed" / name, kept[name]) for name in LOGS}
        committed = {json.loads(line)["seed"] for line in kept["rollouts.jsonl"].splitlines()}
        moment.asked = Counter(seeds_asked(home, before))
        moment.committed = committed
        landed += 0 < len(done_ids(kept["rollouts.jsonl"])) < PLANNED
    assert collector(home, "killed").wait().code == 1
    for name in LOGS:
        still_begins_with(home.path / "killed" / name, kept[name])

    assert landed >= LANDED
    assert without_address(home, "killed") == uninterrupted
    assert lines_are_unique(home.path / "killed")
    asked = Counter(seeds_asked(home, before))
    for moment in moments:
        assert {s: asked[s] for s in moment.committed} == {s: moment.asked[s] for s in moment.committed}


class Moment:
    """When to kill: `lines` stand in the log and the process has sent `requests`; at 0, once it has the lock."""

    def __init__(self, lines: int, requests: int) -> None:
        self.lines = lines
        self.requests = requests
        self.first_request = 0
        self.asked: Counter[int] = Counter()
        self.committed: set[int] = set()

    def __repr__(self) -> str:
        return f"{self.lines} lines and {self.requests} requests"

    def has_come(self, home: Project, running: Running) -> bool:
        if not self.requests:
            return holder(home.path / "killed" / "lock") == running.pid
        log = home.path / "killed" / "rollouts.jsonl"
        sent = home.server.completions - self.first_request
        return sent >= self.requests and log.read_bytes().count(b"\n") >= self.lines


def seeded_moments(seed: int) -> list[Moment]:
    draw = random.Random(f"kill {seed}")
    lines = sorted(draw.sample(range(1, PLANNED - 40), KILLS - 1))
    moments = [Moment(count, draw.randint(1, 10)) for count in lines]
    moments.insert(draw.randrange(1, KILLS) if seed % 2 else 0, Moment(0, 0))
    return moments


def collector(home: Project, out: str) -> Running:
    flags = ["-k", str(SAMPLES), "--seeds", "id", "--out", out, "--call-retries", "0", "--retries", "5"]
    return home.start_collect(*flags, "--scorer", "number", "--scorer", "judging:judge=0.25", "--quiet")


def holder(lock: Path) -> int | None:
    try:
        return int(json.loads(lock.read_bytes())["pid"])
    except (FileNotFoundError, ValueError):
        return None


def still_begins_with(log: Path, kept: bytes) -> bytes:
    """The whole lines of a log, which are those it had before and perhaps more."""
    data = log.read_bytes() if log.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    assert whole.startswith(kept), f"{log.name} lost or changed a line"
    return whole


def done_ids(log: bytes) -> set[str]:
    lines = [json.loads(line) for line in log.splitlines()]
    return {line["id"] for line in lines if line["status"] == "completed"}


def seeds_asked(home: Project, start: int) -> list[int]:
    return [body["seed"] for body in home.server.bodies[start:]]
