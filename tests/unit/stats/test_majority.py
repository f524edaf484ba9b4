"""majority@k: by enumeration of every draw, by closed forms, and on runs whose scorers read answers."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.collect_helpers import answering, collected
from tests.support.run_builders import make_grading, make_rollout, write_run
from windrow import Rollout
from windrow.cli.main import main
from windrow.records import RecordedScore
from windrow.stats.majority import MOST_DRAWN, NAMED_TASKS, Majority, majority_at
from windrow.stats.metrics import measure
from windrow.stats.summary import summarise

pytestmark = pytest.mark.slow

Sample = tuple[str | None, bool]  # an answer, and whether it passes


def by_enumeration(samples: Sequence[Sample], k: int) -> float:
    """What the definition says, draw by draw."""
    return statistics.fmean(winner(draw) for draw in itertools.combinations(samples, k))


def winner(draw: Sequence[Sample]) -> float:
    votes: dict[str, list[bool]] = {}
    for answer, passes in draw:
        if answer is not None:
            votes.setdefault(answer, []).append(passes)
    lead = max(map(len, votes.values()), default=0)
    return statistics.fmean([statistics.fmean(v) for v in votes.values() if len(v) == lead] or [0.0])


def vote_of(samples: Sequence[Sample]) -> tuple[tuple[int, int], ...]:
    answers = {answer for answer, _ in samples if answer is not None}
    passes = [[passes for said, passes in samples if said == answer] for answer in answers]
    return tuple(sorted((len(of), sum(of)) for of in passes))


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b", "c", "d"]), st.booleans()), min_size=1, max_size=9)
)
def test_it_is_the_mean_over_every_draw(samples: list[Sample]) -> None:
    ks = tuple(range(1, len(samples) + 1))
    found = majority_at(vote_of(samples), len(samples), ks)
    assert found == pytest.approx({k: by_enumeration(samples, k) for k in ks})


def test_closed_forms() -> None:
    # five of eight say what passes, three the same wrong thing: of three draws at least two must be of the five
    right = (5 * 4 * 3 / 6 + 5 * 4 / 2 * 3) / (8 * 7 * 6 / 6)
    assert majority_at(((3, 0), (5, 5)), 8, (1, 3, 8)) == pytest.approx({1: 5 / 8, 3: right, 8: 1.0})
    # all different: whoever is drawn wins a share
    assert majority_at(((1, 0), (1, 0), (1, 0), (1, 1)), 4, (1, 2, 3, 4)) == pytest.approx(
        dict.fromkeys((1, 2, 3, 4), 0.25)
    )
    # nobody answers
    assert majority_at((), 4, (1, 2, 4)) == {1: 0.0, 2: 0.0, 4: 0.0}


# -- on runs


def sampled(name: str, samples: Sequence[Sample], *, index: int = 0, evidence: bool = True) -> list[Rollout]:
    return [
        make_rollout(
            name,
            sample=number,
            index=index,
            grade="graded",
            reward=float(passes),
            scores={"judge": score(answer, passes, evidence=evidence)},
        )
        for number, (answer, passes) in enumerate(samples)
    ]


def score(answer: Any, passes: bool, *, evidence: bool = True) -> RecordedScore:
    said = {"why": "so", "answer": answer} if evidence else None
    return RecordedScore(value=float(passes), weight=1.0, evidence=said, scorer="judge")


def majority(run: Path) -> Majority:
    found = summarise(run).majority
    assert found is not None
    assert found == measure(run).agents[0].agent_metrics.majority
    return found


JUDGED_BOTH_WAYS: list[Sample] = [("7", True), ("7", False), ("7", True), ("9", False), ("9", False)]


def test_one_answer_judged_both_ways_is_one_candidate(tmp_path: Path) -> None:
    """By pairs of answer and verdict, the sevens would only tie with the nines."""
    run = write_run(tmp_path / "run", sampled("t", JUDGED_BOTH_WAYS))
    assert majority(run).at["5"] == pytest.approx(2 / 3)
    assert majority(run).at["2"] == pytest.approx(by_enumeration(JUDGED_BOTH_WAYS, 2))
    assert measure(run).agents[0].key_metrics["majority@5"] == pytest.approx(2 / 3)


def test_the_order_of_the_samples_does_not_matter(tmp_path: Path) -> None:
    found = [
        majority(write_run(tmp_path / str(number), sampled("t", samples))).at
        for number, samples in enumerate((JUDGED_BOTH_WAYS, JUDGED_BOTH_WAYS[::-1]))
    ]
    assert found[0] == found[1]


def test_a_sample_without_an_answer_is_counted_and_never_wins(tmp_path: Path) -> None:
    samples: list[Sample] = [(None, False), (None, False), (None, False), ("4", True)]
    run = write_run(tmp_path / "run", sampled("t", samples))
    found = majority(run)
    assert (found.no_answer, found.samples) == (3, 4)
    assert found.at == pytest.approx({"1": 1 / 4, "2": 1 / 2, "4": 1.0})


def test_tasks_whose_answers_nobody_read_are_named_and_in_no_majority(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rollouts = sampled("read", [("1", True), ("1", True)])
    rollouts += sampled("unread", [(None, True), (None, False)], index=1, evidence=False)
    run = write_run(tmp_path / "run", rollouts)
    found = majority(run)
    assert (found.tasks, found.at) == (1, {"1": 1.0, "2": 1.0})
    assert (found.unread, found.unread_tasks) == (1, ["unread"])
    assert summarise(run).pass_tasks == 2
    assert main(["stats", str(run)]) == 0
    assert "in none: 1 tasks whose answers no scorer reads (unread)" in capsys.readouterr().out


def test_a_task_of_whose_samples_some_were_not_read_is_in_no_majority(tmp_path: Path) -> None:
    read = sampled("read", [("1", True), ("1", True)])
    mixed = sampled("mixed", [("1", False), ("1", False)], index=1)
    mixed.append(make_rollout("mixed", sample=2, index=1, grade="graded", reward=1.0))
    found = majority(write_run(tmp_path / "run", read + mixed))
    assert (found.tasks, found.at, found.unread_tasks) == (1, {"1": 1.0, "2": 1.0}, ["mixed"])


def test_of_many_unread_tasks_the_first_are_named(tmp_path: Path) -> None:
    rollouts = sampled("read", [("1", True)])
    for number in range(NAMED_TASKS + 5):
        rollouts += sampled(f"u{number}", [(None, True)], index=1 + number, evidence=False)
    found = majority(write_run(tmp_path / "run", rollouts))
    assert (found.unread, len(found.unread_tasks)) == (NAMED_TASKS + 5, NAMED_TASKS)


def test_without_a_scorer_that_reads_answers_there_is_no_majority(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sampled("t", [(None, True)], evidence=False))
    assert summarise(run).majority is None
    assert not [name for name in measure(run).agents[0].key_metrics if name.startswith("majority")]


def test_the_tasks_are_the_same_for_every_k(tmp_path: Path) -> None:
    rollouts = sampled("four", [("1", True)] * 4) + sampled("two", [("1", False)] * 2, index=1)
    found = majority(write_run(tmp_path / "run", rollouts))
    assert (found.tasks, found.at) == (1, {"1": 1.0, "2": 1.0, "4": 1.0})


def test_of_very_many_samples_only_the_draws_of_one_and_of_all_are_counted(tmp_path: Path) -> None:
    samples: list[Sample] = [("1", True)] * 50 + [("2", False)] * (MOST_DRAWN - 40)
    found = majority(write_run(tmp_path / "run", sampled("t", samples)))
    assert found.at == pytest.approx({"1": 50 / len(samples), str(len(samples)): 1.0})


def test_answers_of_gradings_made_later_count_and_those_that_are_no_text_are_compared_as_json(
    tmp_path: Path,
) -> None:
    answers = [{"x": 1, "y": 2}, {"y": 2, "x": 1}, 3]
    rollouts = [make_rollout("t", sample=number, grade="pending") for number in range(3)]
    gradings = [
        make_grading(rollout, 1.0, scores=({"judge": score(answer, number < 2)},))
        for number, (rollout, answer) in enumerate(zip(rollouts, answers, strict=True))
    ]
    found = majority(write_run(tmp_path / "run", rollouts, gradings))
    assert found.at["3"] == 1.0


async def test_the_built_in_scorers_read_the_answers_of_a_run(tmp_path: Path) -> None:
    replies = itertools.cycle(["7", "it is 7.0", "8", "no idea"])
    rows = [{"prompt": "3 + 4?", "answer": "7"}]
    run = tmp_path / "run"
    policy = answering(lambda request: next(replies))
    await collected(rows, policy=policy, samples=4, scorers=["number"], out=str(run))
    found = json.loads((run / "metrics.json").read_text())["agents"][0]
    assert found["agent_metrics"]["majority"]["no_answer"] == 1
    assert found["key_metrics"]["majority@4"] == 1.0


async def test_a_long_answer_is_kept_short_and_still_told_from_another(tmp_path: Path) -> None:
    long = "x" * 5000
    replies = itertools.cycle([long + "a", long + "b", long + "a"])
    rows = [{"prompt": "say it", "answer": long + "a"}]
    policy = answering(lambda request: next(replies))
    run = tmp_path / "run"
    rollouts = await collected(rows, policy=policy, samples=3, scorers=["exact"], out=str(run), concurrency=1)
    said = [rollout.scores["exact"].evidence["answer"] for rollout in rollouts]
    assert (len(set(said)), max(map(len, said)) < 300) == (2, True)
    assert majority(run).at["3"] == 1.0
