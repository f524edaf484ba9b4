"""The examples that are judged, end to end with the model in the process: it is a weak judge, and an honest record.

A verdict that it does not give in the form that was asked for is a grading that failed, with everything it said.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_process import Project
from tests.support.judged_runs import gradings
from windrow.policies.models import DEFAULT_MODEL, find_model, pull

EXAMPLES = Path(__file__).parents[3] / "examples"
ROOM = (
    "--set",
    "policy.local.parallel=2",
    "--set",
    "judge.local.parallel=2",
)  # for eight it takes a second each

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    pull(find_model(DEFAULT_MODEL))
    (tmp_path / "examples").symlink_to(EXAMPLES)
    return Project(tmp_path)


def test_the_rubric_example_grades_what_the_judge_says_and_fails_what_it_does_not(project: Project) -> None:
    command = ["collect", "--config", "examples/rubric.yaml", "--model", "local", "--out", "run"]
    done = project.windrow(*command, *ROOM, "--temperature", "0", "--max-tokens", "16")
    rollouts = project.rollouts()
    assert len(rollouts) == 2
    judged = {grading.unit: grading for grading in gradings(project.run)}
    for rollout in rollouts:
        assert (rollout.env, rollout.grade in ("graded", "failed")) == ("rubric", True)
        grading = judged[rollout.id]
        criteria = rollout.task["rubric"]
        assert {judgement.about for judgement in grading.judgements} == {
            f"criterion {criterion['name']}" for criterion in criteria
        }
        assert all(judgement.model.startswith("local:") for judgement in grading.judgements)
        if rollout.grade == "graded":
            assert rollout.reward is not None
            assert 0 <= rollout.reward <= 1
            assert len(rollout.scores) == 1 + len(criteria)
        else:
            assert rollout.error is not None
            assert (rollout.reward, rollout.error.kind) == (None, "unreadable_judgement")
    assert done.code == (0 if all(rollout.grade == "graded" for rollout in rollouts) else 1), done.err


def test_the_preference_example_compares_every_pair_of_the_ring_in_both_orders(project: Project) -> None:
    command = ["collect", "--config", "examples/preference.yaml", "--model", "local", "--out", "run"]
    done = project.windrow(*command, *ROOM, "--max-tokens", "8", "--limit", "1")
    rollouts = project.rollouts()
    assert [rollout.sample for rollout in rollouts] == [0, 1, 2]
    [grading] = gradings(project.run)
    pairs = {str(judgement.about).partition(",")[0] for judgement in grading.judgements}
    assert pairs == {"sample 0 vs sample 1", "sample 1 vs sample 2", "sample 0 vs sample 2"}
    assert done.code == (0 if grading.error is None else 1), done.err
    for rollout in rollouts:
        assert rollout.grade == ("graded" if grading.error is None else "failed")
        if rollout.grade == "graded":
            assert rollout.reward is not None
            assert -1 <= rollout.reward <= 1
            assert rollout.metrics["preference.matches"] == 2
        else:
            assert (rollout.reward, rollout.scores) == (None, {})
