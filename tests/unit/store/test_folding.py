"""Which scores count: the environment's own, and the scorers' of the active grading, the latest of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.run_builders import FAILED, GRADING, judge, make_grading, make_rollout, write_run
from tests.support.run_builders import collect as collect_run
from windrow.records import ErrorRecord, RecordedScore, Rollout, encode
from windrow.store.folding import decode_graded_fields, expected_scorers, fold, missing_scorers
from windrow.store.manifest import Fingerprint
from windrow.store.reader import load

OWN = {"score": RecordedScore(value=0.5, weight=2.0)}
JUDGED = {"judge": RecordedScore(value=1.0, weight=1.0, scorer="judge")}
PENDING = make_rollout(grade="pending")


def folded(
    rollout: Rollout, *gradings: Any, active: str | None = GRADING.hash, expected: Any = ("judge",)
) -> Rollout:
    """The rollout as it counts; the part of its line that statistics decode must say the same."""
    found = fold(rollout, gradings, active=active, expected=expected)
    part = fold(decode_graded_fields(encode(rollout)), gradings, active=active, expected=expected)
    for field in ("grade", "grading", "reward", "scores", "metrics", "error"):
        assert getattr(part, field) == getattr(found, field)
    return found


def verdict(rollout: Rollout) -> tuple[str, float | None]:
    return rollout.grade, rollout.reward


def test_a_line_that_is_graded_under_the_active_fingerprint_stands_as_it_is() -> None:
    line = make_rollout(grade="graded", reward=1.0, scores=JUDGED)
    assert folded(line) is line


def test_a_pending_line_is_pending_until_it_is_graded() -> None:
    assert verdict(folded(PENDING)) == ("pending", None)
    assert verdict(folded(PENDING, make_grading(PENDING, 0.5))) == ("graded", 0.5)


def test_the_latest_grading_of_a_scorer_counts() -> None:
    gradings = [make_grading(PENDING, value) for value in (0.1, 0.9, 0.4)]
    assert verdict(folded(PENDING, *gradings)) == ("graded", 0.4)


def test_a_grading_that_failed_leaves_the_rollout_ungraded_with_its_error() -> None:
    result = folded(PENDING, make_grading(PENDING, None))
    assert verdict(result) == ("failed", None)
    assert result.error is not None
    assert result.error.owner == "scorer"


def test_a_grading_that_succeeded_later_takes_the_error_away() -> None:
    result = folded(PENDING, make_grading(PENDING, None), make_grading(PENDING, 1.0))
    assert (*verdict(result), result.error) == ("graded", 1.0, None)


def test_scores_under_another_fingerprint_do_not_count_and_the_environments_own_do() -> None:
    line = make_rollout(grade="graded", grading="grading-0", reward=2.0, scores={**OWN, **JUDGED})
    result = folded(line)
    assert (result.scores, *verdict(result)) == (OWN, "pending", None)
    assert verdict(folded(line, make_grading(line, 0.25))) == ("graded", 1.25)
    assert verdict(folded(line, active=None, expected=())) == ("graded", 1.0)


def test_all_scorers_are_needed_for_a_reward() -> None:
    style = make_grading(
        PENDING,
        1.0,
        scorer="style",
        scores=({"style": RecordedScore(value=3.0, weight=1.0, scorer="style")},),
    )
    both = ("judge", "style")
    half = folded(PENDING, style, expected=both)
    assert (*verdict(half), missing_scorers(half, both)) == ("pending", None, ("judge",))
    whole = folded(PENDING, style, make_grading(PENDING, 0.5), expected=both)
    assert (*verdict(whole), missing_scorers(whole, both)) == ("graded", 3.5, ())


def test_a_score_the_line_has_inline_stays_beside_a_later_grading() -> None:
    line = make_rollout(
        grade="pending", scores={"exact": RecordedScore(value=1.0, weight=1.0, scorer="exact")}
    )
    result = folded(line, make_grading(line, 0.5), expected=("exact", "judge"))
    assert (sorted(result.scores), *verdict(result)) == (["exact", "judge"], "graded", 1.5)


def test_what_a_scorer_no_longer_gives_is_gone_with_its_new_grading() -> None:
    two = {name: RecordedScore(value=1.0, weight=1.0, scorer="judge") for name in ("judge.a", "judge.b")}
    line = make_rollout(grade="graded", reward=2.0, scores=two)
    result = folded(line, make_grading(line, 0.5))
    assert (sorted(result.scores), result.reward) == (["judge"], 0.5)


def test_metrics_of_a_grading_are_added() -> None:
    grading = make_grading(PENDING, 1.0, metrics=({"words": 7.0},))
    line = make_rollout(grade="pending", metrics={"steps": 1.0})
    assert folded(line, grading).metrics == {"steps": 1.0, "words": 7.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "failed", "stop": "error", "error": FAILED},
        {"status": "cancelled", "stop": "cancelled", "reason": "interrupted"},
        {"status": "cancelled", "stop": "cancelled", "reason": "surplus"},
    ],
)
def test_what_did_not_end_is_never_graded(changes: dict[str, Any]) -> None:
    line = make_rollout(grading="grading-0", **changes)
    assert folded(line, make_grading(line, 1.0)) == line
    assert missing_scorers(line, ("judge",)) == ()


def test_an_environment_that_failed_to_score_is_not_mended_by_a_grading() -> None:
    error = ErrorRecord(owner="env", kind="ValueError", message="no", phase="score", retryable=True)
    line = make_rollout(grade="failed", error=error)
    result = folded(line, make_grading(line, 1.0))
    assert (*verdict(result), result.error) == ("failed", None, error)


def test_each_member_of_a_unit_gets_its_own_scores(tmp_path: Path) -> None:
    members = [make_rollout("a", sample=sample, grade="pending") for sample in range(3)]
    grading = make_grading(
        members[0],
        0.0,
        unit=members[0].group,
        members=tuple((member.id, member.attempt) for member in members),
        scores=tuple({"judge": RecordedScore(value=n / 4, weight=1.0, scorer="judge")} for n in range(3)),
    )
    run = write_run(tmp_path / "run", members, [grading])
    assert [rollout.reward for rollout in load(run)] == [0.0, 0.25, 0.5]


def test_a_grading_is_of_one_attempt(tmp_path: Path) -> None:
    first, second = (make_rollout("a", attempt=attempt, grade="pending") for attempt in (1, 2))
    run = write_run(tmp_path / "run", [first, second], [make_grading(first, 1.0)])
    assert [verdict(rollout) for rollout in load(run, attempts="all")] == [("graded", 1.0), ("pending", None)]


def test_gradings_of_another_fingerprint_wait_until_it_is_active_again(tmp_path: Path) -> None:
    gradings = [
        make_grading(PENDING, 1.0),
        make_grading(PENDING, 0.25, fingerprint="grading-b", generation=2),
    ]
    of = GRADING.of
    for active, generation, reward in (("grading-a", 1, 1.0), ("grading-b", 2, 0.25), ("grading-c", 3, None)):
        grading = Fingerprint(active, of, generation)
        run = write_run(tmp_path / active, [PENDING], gradings, grading=grading)
        assert [rollout.reward for rollout in load(run)] == [reward]
    run = write_run(tmp_path / "none", [PENDING], gradings, grading=None)
    assert [verdict(rollout) for rollout in load(run)] == [("none", None)]


def test_scorers_meant_for_one_environment_are_expected_of_no_other() -> None:
    of = {"scorers": [{"name": "number"}], "env": "problem"}
    assert expected_scorers(of, "problem") == ("number",)
    assert expected_scorers(of, "my_pkg:Game") == ()
    assert expected_scorers({**of, "env": None}, "my_pkg:Game") == ("number",)
    assert expected_scorers({}, "problem") == ()


async def test_regrading_there_and_back_needs_no_new_scores(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await collect_run(run, scorers=("exact",))
    await collect_run(run, scorers=(judge, "contains"), regrade=True)
    size = (run / "scores.jsonl").stat().st_size
    assert size > 0
    summary, _ = await collect_run(run, scorers=("exact",), regrade=True)
    assert (summary.complete, (run / "scores.jsonl").stat().st_size) == (True, size)
    assert [sorted(rollout.scores) for rollout in load(run)] == [["exact", "exact.format"]] * 6
    summary, _ = await collect_run(run, scorers=(judge, "contains"), regrade=True)
    assert (summary.complete, (run / "scores.jsonl").stat().st_size) == (True, size)
    assert [rollout.reward for rollout in load(run)] == [2.0] * 6
