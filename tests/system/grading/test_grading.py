"""Grading apart from collecting: it is repeated alone, changed alone, and never asks the model for anything."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.command_process import Project

pytestmark = pytest.mark.slow

ROWS = [{"id": f"q{n}", "prompt": f"what is {n}", "answer": "42"} for n in range(4)]

JUDGES = """
import os, pathlib, time

def deadly(task, reply):
    flag = pathlib.Path("died")
    if not flag.exists():
        flag.touch()
        os._exit(7)
    return 0.75

def moody(task, reply):
    if task["id"] == "q2" and not pathlib.Path("calm").exists():
        raise ValueError("not in the mood")
    return 1.0

def late(task, reply):
    if not pathlib.Path("calm").exists():
        time.sleep(1000)
    return 1.0

def moody_late(task, reply):
    return moody(task, reply)

def length(task, reply):
    return {"chars": len(reply), "words": (len(reply.split()), 0.0)}

deadly.after_commit = moody_late.after_commit = True
"""


@pytest.fixture
def home(in_process_project: Callable[..., Project]) -> Project:
    return furnished(in_process_project("it is 42"))


@pytest.fixture
def process_home(project: Callable[..., Project]) -> Project:
    """For scorers that end their process or never return."""
    return furnished(project("it is 42"))


def furnished(home: Project) -> Project:
    home.tasks(ROWS)
    home.module("judges", JUDGES)
    return home


def rewards(home: Project) -> list[float | None]:
    return [rollout.reward for rollout in home.rollouts()]


def test_a_crash_between_the_last_rollout_and_its_grading_repeats_only_the_grading(
    process_home: Project,
) -> None:
    process_home.tasks(ROWS[:1])
    assert process_home.collect("--scorer", "judges:deadly").code == 7
    assert [line["grade"] for line in process_home.lines()] == ["pending"]
    assert rewards(process_home) == [None]
    log = (process_home.run / "rollouts.jsonl").read_bytes()
    asked = dict(process_home.server.requests)

    ended = process_home.collect("--scorer", "judges:deadly")
    assert ended.code == 0
    assert "1 to grade, nothing to run" in ended.err
    assert rewards(process_home) == [0.75]
    assert (process_home.run / "rollouts.jsonl").read_bytes() == log
    assert process_home.server.requests == asked
    assert len(process_home.lines("scores.jsonl")) == 1

    assert process_home.collect("--scorer", "judges:deadly").code == 0
    assert len(process_home.lines("scores.jsonl")) == 1  # graded once is graded


@pytest.mark.parametrize("scorer", ["judges:moody", "judges:moody_late"])
def test_a_scorer_that_raises_fails_the_grade_and_the_next_call_grades_again(
    scorer: str, home: Project
) -> None:
    ended = home.collect("--scorer", scorer)
    assert ended.code == 1
    assert "4 of 4 done" in ended.err
    assert "1 not graded: the same command grades them" in ended.err
    moody = next(rollout for rollout in home.rollouts() if rollout.task.key == "q2")
    assert (moody.status, moody.grade, moody.reward) == ("completed", "failed", None)
    assert moody.error is not None
    assert (moody.error.owner, moody.error.kind) == ("scorer", "ValueError")
    assert "not in the mood" in moody.error.message
    stats = json.loads(home.windrow("stats", "run", "--json").out)
    assert stats["grade"] == {"graded": 3, "failed": 1}
    assert (stats["reward"]["value"], stats["reward"]["n"]) == (1.0, 3)

    assert home.collect("--scorer", scorer).code == 1  # still not in the mood
    (home.path / "calm").touch()
    assert home.collect("--scorer", scorer).code == 0
    assert rewards(home) == [1.0] * 4
    assert [rollout.error for rollout in home.rollouts()] == [None] * 4
    assert {rollout.attempt for rollout in home.rollouts()} == {1}
    assert home.server.completions == 4


def test_a_scorer_that_hangs_fails_the_grade_and_not_the_command(process_home: Project) -> None:
    flags = ("--scorer", "judges:late", "--score-timeout", "0.2")
    assert process_home.collect(*flags).code == 1
    assert {(r.status, r.grade, r.error and r.error.kind) for r in process_home.rollouts()} == {
        ("completed", "failed", "timeout")
    }
    (process_home.path / "calm").touch()
    assert process_home.collect(*flags[:2]).code == 0
    assert rewards(process_home) == [1.0] * 4
    assert process_home.server.completions == 4


def test_a_changed_scorer_stops_and_names_regrade(home: Project) -> None:
    assert home.collect().code == 0
    log = (home.run / "rollouts.jsonl").read_bytes()
    for flags in (("--scorer", "contains"), ("--scorer", "number=2")):
        refused = home.collect(*flags, "-k", "2")
        assert refused.code == 2
        assert "--regrade" in refused.err
        assert "scorers[0]" in refused.err
    assert (home.run / "rollouts.jsonl").read_bytes() == log
    assert home.server.completions == 4
    assert home.collect().code == 0  # the run itself is as it was


def test_regrade_adds_scores_without_a_request_and_every_reader_sees_them(home: Project) -> None:
    assert home.collect("--scorer", "exact").code == 0
    assert rewards(home) == [0.0] * 4
    log = (home.run / "rollouts.jsonl").read_bytes()
    asked = dict(home.server.requests)

    flags = ("--scorer", "contains", "--scorer", "judges:length=0.5")
    ended = home.collect(*flags, "--regrade")
    assert ended.code == 0
    assert "4 to grade, nothing to run" in ended.err
    assert home.server.requests == asked
    assert (home.run / "rollouts.jsonl").read_bytes() == log
    for rollout in home.rollouts():
        assert set(rollout.scores) == {
            "contains", "contains.format", "judges:length.chars", "judges:length.words",
        }  # fmt: skip
        assert (rollout.grade, rollout.reward) == ("graded", 1.0 + 0.5 * 8)
    stats = json.loads(home.windrow("stats", "run", "--json").out)
    assert stats["reward"]["value"] == 5.0
    assert stats["scores"]["judges:length.words"]["value"] == 3.0
    assert "exact" not in stats["scores"]
    shown = [json.loads(line) for line in home.windrow("show", "run", "--json").out.splitlines()]
    assert {line["reward"] for line in shown} == {5.0}
    assert "reward 5" in home.windrow("show", "run", shown[0]["id"]).out

    assert home.collect(*flags, "-k", "2").code == 0  # from now on these are the run's scorers
    assert rewards(home) == [5.0] * 8
    assert home.server.completions == 8


def test_regrade_back_needs_no_second_judging_of_what_the_lines_hold(home: Project) -> None:
    assert home.collect("--scorer", "exact").code == 0
    assert home.collect("--scorer", "contains", "--regrade").code == 0
    assert rewards(home) == [1.0] * 4
    assert home.collect("--scorer", "exact", "--regrade").code == 0
    assert rewards(home) == [0.0] * 4
    assert len(home.lines("scores.jsonl")) == 4
    assert home.collect("--scorer", "exact").code == 0


def test_a_killed_regrade_goes_on_with_what_it_had_not_graded(process_home: Project) -> None:
    assert process_home.collect("--scorer", "exact").code == 0
    assert process_home.collect("--scorer", "judges:deadly", "--regrade").code == 7
    ended = process_home.collect("--scorer", "judges:deadly")  # the change was agreed to
    assert ended.code == 0
    assert rewards(process_home) == [0.75] * 4
    members = [tuple(line["members"][0]) for line in process_home.lines("scores.jsonl")]
    assert len(set(members)) == len(members) == 4
    assert process_home.server.completions == 4


def test_rows_without_answers_are_collected_ungraded_and_graded_later(home: Project) -> None:
    home.tasks({"prompt": f"say {n}", "id": f"q{n}"} for n in range(2))
    ended = home.collect()
    assert ended.code == 0
    assert "no row has an 'answer'" in ended.err
    assert [(r.grade, r.reward) for r in home.rollouts()] == [("none", None)] * 2
    assert "no rollout is graded" in home.windrow("stats", "run").out
    refused = home.collect("--scorer", "judges:length")
    assert refused.code == 2
    assert "--regrade" in refused.err
    assert home.collect("--scorer", "judges:length", "--regrade").code == 0
    assert rewards(home) == [8.0] * 2
    assert home.server.completions == 2
