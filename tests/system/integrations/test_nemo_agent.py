"""Agent servers of NeMo Gym with failures of their own, a collector that is killed, and the same command again."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_process import Project
from tests.support.nemo_gym_servers import DIE, Gym, Row, answer, prompt_of, row

pytestmark = pytest.mark.slow

TASKS, SAMPLES = 12, 2  # for each of the two agents
PLANNED = 2 * TASKS * SAMPLES
STEP = 10  # answers between two kills, some of which go to requests of the one that was killed
KILLS = 4


class SocksProxy:
    """Lets the agents answer so many rows in all; the others wait."""

    def __init__(self) -> None:
        self._allowed = 0.0
        self._seen = 0
        self._changed = threading.Condition()

    def let(self, more: float) -> None:
        with self._changed:
            self._allowed = self._seen + more
            self._changed.notify_all()

    def wait(self) -> int:
        with self._changed:
            place = self._seen
            self._seen += 1
            self._changed.wait_for(lambda: place < self._allowed)
            return place


@pytest.fixture
def gate() -> SocksProxy:
    return SocksProxy()


@pytest.fixture
def gym(gate: SocksProxy) -> Iterator[Gym]:
    def math(sent: Row, n: int) -> Any:
        place = gate.wait()
        if place % 7 == 3:
            return 500, "RuntimeError('no browser')"
        return answer(sent, prompt_of(sent), reward=1.0)

    def code(sent: Row, n: int) -> Any:
        place = gate.wait()
        if place % 5 == 2:
            return DIE
        return answer(
            sent, prompt_of(sent), reward=0.5, **({"_ng_no_persist": True} if place % 11 == 6 else {})
        )

    with Gym({"math": math, "code": code}) as made:
        yield made
        gate.let(float("inf"))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.close()


def done(project: Project) -> set[tuple[int, int]]:
    """The task and sample of what is committed and settled, by the whole lines that are there."""
    found = set()
    for log in project.run.glob("rollouts*.jsonl"):
        whole = log.read_bytes().rpartition(b"\n")[0]
        (project.path / "whole.jsonl").write_bytes(whole)
        lines = project.lines("whole.jsonl", project.path)
        found |= {(line["task"]["index"], line["sample"]) for line in lines if line["status"] == "completed"}
    return found


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_collector_that_is_killed_goes_on_and_nothing_is_played_or_written_twice(
    project: Project, gym: Gym, gate: SocksProxy, workers: str
) -> None:
    project.tasks(row(f"{agent} {n}", agent) for n in range(TASKS) for agent in ("math", "code"))
    flags = ["--agent", f"nemo-gym:{gym.head}", "-k", str(SAMPLES), "--out", "run", "--concurrency", "6"]
    flags += ["--retries", "9", "--set", "policy.backoff_s=0.01", "--workers", workers]
    settled: list[
        tuple[int, set[tuple[int, int]]]
    ] = []  # how many rows had been sent, and what was done by then
    for _ in range(KILLS):
        gate.let(STEP)
        before = len(done(project))
        running = project.start("collect", "tasks.jsonl", *flags)
        running.until(lambda before=before: len(done(project)) > before, "something was committed")
        running.signal(signal.SIGKILL)
        running.wait()
        settled.append((len(gym.rows), done(project)))
    gate.let(float("inf"))
    last = project.start("collect", "tasks.jsonl", *flags).wait()
    assert last.code == 0, last.err
    rollouts = project.rollouts()
    assert len(rollouts) == PLANNED
    assert {rollout.agent: rollout.reward for rollout in rollouts} == {"math": 1.0, "code": 0.5}
    assert all(rollout.reply == rollout.messages[0].text for rollout in rollouts)
    attempts = Counter((one.id, one.attempt) for one in project.rollouts("all"))
    finished = Counter(one.id for one in project.rollouts("all") if one.status == "completed")
    assert max(attempts.values()) == max(finished.values()) == 1
    for sent, known in settled:
        later = {(one["_ng_task_index"], one["_ng_rollout_index"]) for _, one in gym.rows[sent:]}
        assert not later & known
    assert len({one["_ng_rollout_id"] for _, one in gym.rows}) == len(gym.rows)
    assert gym.refused == []
