"""Judging by a judge that is slow, in a process that is killed: what was answered is not asked again, and every verdict lands.

The judge is a real server, and counts what it is asked.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.command_process import Project, Running
from tests.support.model_server import ModelServer
from tests.support.response_valve import Valve
from windrow.grading.rescoring import generations

pytestmark = pytest.mark.slow

TASKS, SAMPLES = 6, 4
KILLS = 8
JUDGING = """
import itertools

def grade(said):
    if not said.isdecimal():
        raise ValueError("a number, please")
    return int(said) % 7

async def single(task, reply, ctx):
    return await ctx.ask([{"role": "user", "content": f"how good is {reply}"}], grade)

async def pairs(group, ctx):
    sums = {rollout.key: 0.0 for rollout in group.rollouts}
    for one, other in itertools.combinations(group.rollouts, 2):
        question = f"by how much is {one.reply} better than {other.reply}"
        margin = await ctx.ask([{"role": "user", "content": question}], grade)
        sums[one.key] += margin
        sums[other.key] -= margin
    return sums

pairs.unit = "group"
single.version = pairs.version = 1
"""
SCORERS = ("--scorer", "judging:single", "--scorer", "judging:pairs")
QUESTIONS = TASKS * (SAMPLES + SAMPLES * (SAMPLES - 1) // 2)


def verdict(body: dict[str, Any], n: int) -> str:
    return str(sum(body["messages"][0]["content"].encode()))


@pytest.fixture
def valve() -> Valve:
    return Valve()


@pytest.fixture
def judge(valve: Valve) -> Iterator[ModelServer]:
    with ModelServer(valve.before(verdict), latency_s=0.01) as server:
        yield server


@pytest.fixture
def home(project: Callable[..., Project]) -> Project:
    made = project(lambda body, n: f"reply {body['seed']}")
    made.module("judging", JUDGING)
    made.tasks({"prompt": f"task {n}"} for n in range(TASKS))
    return made


def asked(judge: ModelServer) -> Counter[str]:
    return Counter(body["messages"][0]["content"] for body in judge.bodies)


def killed_again_and_again(start: Callable[[], Running], judge: ModelServer, valve: Valve) -> None:
    """Kill the command after every few questions to the judge, of which the last are not answered."""
    for _ in range(KILLS):
        enough = judge.completions + 7
        with valve.shut_once(lambda: judge.completions >= enough):  # noqa: B023
            running = start()
            running.until(lambda: judge.completions >= enough, f"{enough} questions")  # noqa: B023
            running.signal(signal.SIGKILL)
            assert running.wait().code == -signal.SIGKILL


def judged_as_they_should_be(home: Project) -> None:
    """Each rollout has the verdicts that the judge gives on its own reply, and on its group's."""
    rollouts = home.rollouts()
    assert len(rollouts) == TASKS * SAMPLES

    def said(question: str) -> int:
        return sum(question.encode()) % 7

    for rollout in rollouts:
        others = [other for other in rollouts if other.group == rollout.group and other is not rollout]
        margins = 0.0
        for other in others:
            first, second = sorted((rollout, other), key=lambda one: one.sample)
            margin = said(f"by how much is {first.reply} better than {second.reply}")
            margins += margin if first is rollout else -margin
        assert rollout.scores["judging:single"].value == said(f"how good is {rollout.reply}")
        assert rollout.scores["judging:pairs"].value == margins
        assert rollout.grade == "graded"


def flags(judge: ModelServer) -> tuple[str, ...]:
    return (*SCORERS, "--judge", "stub", "--judge-base-url", judge.url, "--judge-concurrency", "4")


def test_a_collection_that_is_killed_while_it_is_judged_asks_the_judge_for_nothing_twice(
    home: Project, judge: ModelServer, valve: Valve
) -> None:
    collect = ("-k", str(SAMPLES), "--seeds", "id", *flags(judge))
    killed_again_and_again(lambda: home.start_collect(*collect), judge, valve)
    assert home.collect(*collect).code == 0
    judged_as_they_should_be(home)
    again = asked(judge)
    assert len(again) == QUESTIONS
    assert again.total() - QUESTIONS <= 4 * KILLS  # only what was under way when it died
    assert home.server.completions <= TASKS * SAMPLES + 8 * KILLS


def test_a_rescore_that_is_killed_goes_on_and_only_then_becomes_active(
    home: Project, judge: ModelServer, valve: Valve
) -> None:
    assert home.collect("-k", str(SAMPLES), "--seeds", "id").code == 0
    rollouts = home.server.completions
    log = (home.run / "rollouts.jsonl").read_bytes()
    rescore = ("rescore", "run", *flags(judge))
    killed_again_and_again(lambda: home.start(*rescore), judge, valve)
    assert {rollout.grade for rollout in home.rollouts()} == {"none"}
    assert home.windrow(*rescore).code == 0
    judged_as_they_should_be(home)
    again = asked(judge)
    assert len(again) == QUESTIONS
    assert again.total() - QUESTIONS <= 4 * KILLS
    assert [one.number for one in generations(home.run)] == [1]
    assert (home.run / "rollouts.jsonl").read_bytes() == log
    assert home.server.completions == rollouts
