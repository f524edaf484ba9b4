"""WebGym's metrics by its own formulas, rule by rule and for every empty set; and the honest ones beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.webgym_data import Action, browsed, failed, steps, write_browsed
from windrow.cli.main import main
from windrow.integrations.webgym.metrics import Share, Step, Trajectory, WebGymMetrics, crashed, measure
from windrow.integrations.webgym.report import report
from windrow.stats.metrics import measure_run
from windrow.trackers.reporting import flat

pytestmark = pytest.mark.slow

WAITED = ("wait",) * 9
LONG = (*WAITED, "wait")  # ten steps without an answer

EMPTY = Trajectory(())
LOST = steps("click", "none", "answer", reward=1.0)
WON = steps("click", "goback", "answer", chars=30, reward=1.0)
MISSED = steps("answer", chars=6)
BLOCKED = steps("click", "wait", blocked=True, chars=1000)


@pytest.mark.parametrize(
    ("trajectory", "expected"),
    [
        pytest.param(EMPTY, True, id="no steps"),
        pytest.param(steps("invalid_url", "answer"), True, id="begins at an invalid address"),
        pytest.param(steps("click", "invalid_url", "answer"), False, id="an invalid address later on"),
        pytest.param(LOST, True, id="a step without an action"),
        pytest.param(steps(*LONG, "none"), True, id="a step without an action, however long"),
        pytest.param(steps(*WAITED), True, id="nine steps without an answer"),
        pytest.param(steps(*LONG), False, id="ten steps without an answer"),
        pytest.param(steps("answer"), False, id="one step that is the answer"),
        pytest.param(steps("answer", "wait"), True, id="an answer that is not last"),
        pytest.param(BLOCKED, False, id="short and blocked"),
    ],
)
def test_what_theirs_takes_for_crashed(trajectory: Trajectory, expected: bool) -> None:
    assert crashed(trajectory) is expected


def test_all_of_theirs_over_one_set_counted_by_hand() -> None:
    found = measure([WON, MISSED, BLOCKED, EMPTY, LOST, steps(*LONG, chars=2)]).webgym
    assert found == WebGymMetrics(
        success_rate=1 / 3,  # won, of won, missed and long: crashed and blocked ones are left out
        avg_steps=(3 + 1 + 10) / 3,
        avg_chars_per_response=(3 * 30 + 6 + 10 * 2) / 14,
        goback_rate=1 / 14,
        crashed_rate=2 / 6,
        blocked_rate=1 / 4,  # of what has not crashed
        total_trajectories=6,
    )


@pytest.mark.parametrize(
    ("trajectories", "changes"),
    [
        pytest.param([], {}, id="nothing at all"),
        pytest.param([None, None], {}, id="nothing but holes"),
        pytest.param([EMPTY, LOST], {"crashed_rate": 1.0, "total_trajectories": 2}, id="all crashed"),
        pytest.param(
            [EMPTY, BLOCKED],
            {"crashed_rate": 0.5, "blocked_rate": 1.0, "total_trajectories": 2},
            id="all the others blocked",
        ),
    ],
)
def test_an_empty_set_gives_zeros(trajectories: Any, changes: dict[str, Any]) -> None:
    assert measure(trajectories).webgym == WebGymMetrics(**changes)


def test_only_a_reward_of_one_is_a_success_and_only_the_last_one_counts() -> None:
    half = steps("answer", reward=0.5)
    early = Trajectory((Step("click", 1, 1.0), Step("answer", 1, 0.0)))
    ungraded = steps("answer", reward=None)
    assert measure([half, early, ungraded]).webgym.success_rate == 0.0
    assert measure([half, WON]).webgym.success_rate == 0.5


def test_only_the_last_step_says_that_it_was_blocked() -> None:
    early = Trajectory((Step("click", 1, 0.0, blocked=True), Step("answer", 1, 1.0)))
    found = measure([early]).webgym
    assert (found.blocked_rate, found.success_rate) == (0.0, 1.0)


def test_the_window_is_the_last_ones_that_are_there_and_the_total_is_of_all() -> None:
    given = [WON, None, EMPTY, MISSED, None, WON]
    last_two = measure([MISSED, WON]).webgym
    assert measure(given, chunk_size=2).webgym == msgspec.structs.replace(last_two, total_trajectories=4)
    assert measure(given, chunk_size=4) == measure(given, chunk_size=99) == measure(given)


def test_what_the_formula_hides_is_said_beside_it() -> None:
    """Thirty of a hundred succeed; twenty that were cut off leave the denominator of theirs."""
    given = [WON] * 30 + [MISSED] * 50 + [steps(*WAITED, reward=None)] * 20
    found = measure(given)
    assert found.webgym.success_rate == 0.375
    assert found.honest.success == Share(30, 100)
    assert found.honest.success.rate == 0.3
    assert found.honest.success_of_graded == Share(30, 80)
    assert found.honest.outcomes == {"answered": 80, "other": 20}


def test_the_honest_numbers_count_a_block_and_a_crash_like_anything_else() -> None:
    found = measure([WON, BLOCKED, EMPTY]).honest
    assert (found.success, found.blocked) == (Share(1, 3), Share(1, 3))
    assert measure([]).honest.success.rate is None


def test_success_is_given_by_difficulty_over_all_of_that_difficulty() -> None:
    def hard(trajectory: Trajectory, difficulty: int | None) -> Trajectory:
        return Trajectory(trajectory.steps, trajectory.outcome, difficulty)

    given = [hard(WON, 1), hard(EMPTY, 3), hard(WON, 4), hard(MISSED, 6), hard(MISSED, 7), hard(WON, None)]
    assert measure(given).honest.success_by_difficulty == {
        "easy": Share(1, 2),
        "medium": Share(1, 2),
        "hard": Share(0, 1),
    }


KEYS = st.sampled_from(["click", "goback", "answer", "wait", "none", "invalid_url"])
STEPS = st.builds(Step, KEYS, st.integers(0, 50), st.sampled_from([None, 0.0, 0.5, 1.0]), st.booleans())
TRAJECTORIES = st.lists(
    st.none() | st.builds(Trajectory, st.lists(STEPS, max_size=12).map(tuple)), max_size=12
)


def written_out(given: list[Trajectory | None], chunk_size: int | None) -> dict[str, float]:
    """The formulas once more, over lists of lists, as they are written down."""
    there = [trajectory.steps for trajectory in given if trajectory is not None]
    window = there[-chunk_size:] if chunk_size is not None else there
    valid = [
        steps
        for steps in window
        if steps
        and steps[0].key != "invalid_url"
        and all(step.key != "none" for step in steps)
        and (len(steps) >= 10 or steps[-1].key == "answer" or steps[-1].blocked)
    ]
    counted = [steps for steps in valid if not steps[-1].blocked]
    every = [step for steps in counted for step in steps]
    return {
        "success_rate": sum(steps[-1].reward == 1 for steps in counted) / max(1, len(counted)),
        "avg_chars_per_response": sum(step.chars for step in every) / max(1, len(every)),
        "avg_steps": len(every) / max(1, len(counted)),
        "goback_rate": sum(step.key == "goback" for step in every) / max(1, len(every)),
        "crashed_rate": (len(window) - len(valid)) / max(1, len(window)),
        "blocked_rate": (len(valid) - len(counted)) / max(1, len(valid)),
        "total_trajectories": len(there),
    }


@settings(max_examples=150, deadline=None)
@given(TRAJECTORIES, st.none() | st.integers(1, 5))
def test_in_one_pass_comes_out_what_the_formulas_say(
    trajectories: list[Trajectory | None], chunk_size: int | None
) -> None:
    found = measure(trajectories, chunk_size=chunk_size).webgym
    assert msgspec.to_builtins(found) == written_out(trajectories, chunk_size)


def test_a_run_of_their_rows_has_their_numbers_in_metrics_json_and_for_trackers(tmp_path: Path) -> None:
    click: Action = ("click", {"x": 1.0, "y": 1.0})
    answer: Action = ("answer", {"text": "3"})
    rollouts = [
        browsed(click, ("back", {}), answer, number=1, reward=1.0),
        browsed(answer, number=2, reward=0.0),
        browsed(click, number=3, blocked=True),
        failed(click, number=4),
    ]
    run = write_browsed(tmp_path / "run", rollouts)
    assert main(["stats", str(run), "--write"]) == 0
    [agent] = json.loads((run / "metrics.json").read_bytes())["agents"]
    theirs = agent["agent_metrics"]["aggregate"]["webgym"]
    assert theirs == report(run).plain()["webgym"]
    assert (theirs["success_rate"], theirs["crashed_rate"], theirs["blocked_rate"]) == (0.5, 0.25, 1 / 3)
    sent = flat(measure_run(run).metrics)
    assert sent[f"{agent['agent']}/aggregate/webgym/blocked_rate"] == 1 / 3
    ours = [msgspec.structs.replace(r, task=msgspec.structs.replace(r.task, data={"q": 1})) for r in rollouts]
    assert "webgym" not in str(measure_run(write_browsed(tmp_path / "other", ours)).metrics.agents)
