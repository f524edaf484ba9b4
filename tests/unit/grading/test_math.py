"""The scorer `math`: equal as mathematics, however it is written; and no reply can stop the run."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import answering, collected, single
from tests.support.process_states import children_of, command_of
from tests.support.task_loading import refusal
from windrow import Rollout

pytestmark = pytest.mark.slow

TOWER = "\\boxed{9^{9^{9^{9}}}}"  # sympy would compute it: for ever, in one call that nothing interrupts


async def judged(
    reply: str, answer: Any, tmp_path: Path, *, settings: dict[str, Any] | None = None
) -> Rollout:
    sets = [f"scorers={json.dumps([{'name': 'math', 'settings': settings or {}}])}"]
    row = {"prompt": "?", "answer": answer}
    return await single([row], policy=answering(reply), out=str(tmp_path / "run"), sets=sets)


def values(rollout: Rollout) -> tuple[float, float]:
    assert rollout.grade == "graded", rollout.error
    return rollout.scores["math"].value, rollout.scores["math.format"].value


async def test_replies_are_compared_as_mathematics(tmp_path: Path) -> None:
    cases = [
        ("So it is \\boxed{\\frac{1}{2}}.", "0.5", (1, 1)),
        ("$\\frac{2}{4}$", "\\frac12", (1, 1)),
        ("The final answer is $(x+1)^2$.", "x^2 + 2x + 1", (1, 1)),
        ("\\boxed{\\{2, 1\\}}", "\\{1, 2\\}", (1, 1)),
        ("First \\boxed{3}, no: \\boxed{4}", "4", (1, 1)),
        ("First \\boxed{4}, no: \\boxed{3}", "4", (0, 1)),
        ("\\boxed{\\sqrt{\\frac{1}{4}}}", "We get $\\boxed{\\frac{1}{2}}$", (1, 1)),
        ("it is 1,000 dollars", 1000, (1, 1)),
        ("18", "18.0", (1, 1)),
        ("2x+1", "2x+1", (1, 1)),
        ("\\boxed{7}", ["5", "7"], (1, 1)),
        ("\\boxed{6}", ["5", "7"], (0, 1)),
        ("I do not know.", "4", (0, 0)),
        ("", "4", (0, 0)),
        ("\\boxed{", "4", (0, 0)),
    ]
    rows = [{"prompt": str(number), "answer": answer} for number, (_, answer, _) in enumerate(cases)]
    policy = answering(lambda request: cases[int(request.messages[0].text)][0])
    rollouts = await collected(rows, policy=policy, scorers=["math"], out=str(tmp_path / "run"))
    found = {cases[int(r.task["prompt"])][0]: values(r) for r in rollouts}
    assert found == {reply: wanted for reply, _, wanted in cases}
    assert {r.reward == values(r)[0] for r in rollouts} == {True}


async def test_form_weighs_what_its_setting_says(tmp_path: Path) -> None:
    rollout = await judged("\\boxed{3}", "4", tmp_path, settings={"format_weight": 0.25})
    assert (values(rollout), rollout.reward) == ((0, 1), 0.25)


@pytest.mark.slow
async def test_a_reply_that_cannot_be_computed_is_neither_equal_nor_well_formed(tmp_path: Path) -> None:
    rows = [{"prompt": reply, "answer": "4"} for reply in ("\\boxed{4}", TOWER, "\\boxed{2+2}")]
    rollouts = await collected(
        rows,
        policy=answering(lambda request: request.messages[0].text),
        out=str(tmp_path / "run"),
        sets=["scorers=[{name: math, settings: {cpu_s: 1}}]"],
    )
    found = {rollout.task["prompt"]: values(rollout) for rollout in rollouts}
    assert found == {"\\boxed{4}": (1, 1), TOWER: (0, 0), "\\boxed{2+2}": (1, 1)}


@pytest.mark.slow
async def test_the_score_timeout_ends_the_comparison_and_what_computes_it(tmp_path: Path) -> None:
    rollout = await single(
        [{"prompt": "?", "answer": "4"}],
        policy=answering(TOWER),
        out=str(tmp_path / "run"),
        sets=["scorers=[{name: math, settings: {cpu_s: 600}}]"],
        score_timeout=1.0,
    )
    assert (rollout.status, rollout.grade, rollout.reward) == ("completed", "failed", None)
    assert rollout.error is not None
    assert (rollout.error.owner, rollout.error.kind) == ("scorer", "timeout")
    wait_until_none_computes()


def wait_until_none_computes() -> None:
    while computing():
        time.sleep(0.02)  # until it is gone, or pytest's own time limit says that it stayed


def computing() -> list[int]:
    """The processes that the scorer's server has forked and that still run."""
    return [
        child
        for server in children_of(os.getpid())
        if "math_worker" in command_of(server)
        for child in children_of(server)
    ]


async def test_an_answer_without_mathematics_fails_the_grading_and_says_so(tmp_path: Path) -> None:
    rollout = await judged("\\boxed{4}", " ", tmp_path)
    assert (rollout.grade, rollout.reward) == ("failed", None)
    assert rollout.error is not None
    assert "holds no mathematics that math-verify can parse" in rollout.error.message


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("{cpu: 3}", "scorer 'math' has no setting 'cpu'; did you mean 'cpu_s'?"),
        ("{cpu_s: 0}", "scorer 'math': cpu_s must be at least 1 second, found 0"),
        ("{cpu_s: soon}", "scorer 'math': cpu_s must be a number, found 'soon'"),
    ],
)
def test_a_setting_that_it_does_not_have_is_refused(settings: str, said: str) -> None:
    rows = [{"prompt": "?", "answer": "4"}]
    assert said in refusal(rows, sets=(f"scorers=[{{name: math, settings: {settings}}}]",))


def test_rows_without_an_answer_are_refused() -> None:
    assert "scorer 'math' needs an 'answer' in every row" in refusal([{"prompt": "?"}], scorers=["math"])


def test_a_missing_extra_gives_the_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)  # how Python marks a module that is not there
    rows = [{"prompt": "?", "answer": "4"}]
    assert refusal(rows, scorers=["math"]) == (
        "scorer 'math' needs the extra 'math'; type: pip install 'windrow-rl[math]'"
    )
