"""The examples that are judged, end to end with the model in the process: it is a weak judge, and an honest record.

A verdict that it does not give in the form that was asked for is a grading that failed, with everything it said.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import Project
from tests.judging import gradings
from windrow.policies.models import DEFAULT_MODEL, find_model, pull

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    pull(find_model(DEFAULT_MODEL))
    (tmp_path / "examples").symlink_to(EXAMPLES)
    return Project(tmp_path)


def test_the_rubric_example_grades_what_the_judge_says_and_fails_what_it_does_not(project: Project) -> None:
    command = ["collect", "--config", "examples/rubric.yaml", "--model", "local", "--out", "run"]
    done = project.windrow(*command, "--temperature", "0", "--max-tokens", "24")
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
