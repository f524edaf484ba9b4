"""Numbers that are easily got wrong, each with its right value: populations that change with k, values that depend on
the order of the samples, bookkeeping among the headlines, one field that hides another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.run_builders import FAILED, make_rollout, write_run
from windrow import Rollout
from windrow.records import Usage
from windrow.stats.metrics import AgentEntry, measure
from windrow.stats.summary import summarise


def graded(name: str, *rewards: float, index: int = 0, **changes: Any) -> list[Rollout]:
    return [
        make_rollout(name, sample=sample, index=index, grade="graded", reward=reward, **changes)
        for sample, reward in enumerate(rewards)
    ]


def only(run: Path) -> AgentEntry:
    [entry] = measure(run).agents
    return entry


def test_pass_at_k_is_over_the_same_tasks_for_every_k_and_says_how_many(tmp_path: Path) -> None:
    """Four of four right, none of two right: a population that shrinks with k would give 0.5 at 2 and 1 at 4."""
    run = write_run(tmp_path / "run", graded("four", 1, 1, 1, 1) + graded("two", 0, 0, index=1))
    found = summarise(run)
    assert (found.pass_at, found.pass_tasks) == ({"1": 1.0, "2": 1.0, "4": 1.0}, 1)
    full = write_run(tmp_path / "full", graded("four", 1, 1, 1, 1) + graded("none", 0, 0, 0, 0, index=1))
    assert (summarise(full).pass_at, summarise(full).pass_tasks) == ({"1": 0.5, "2": 0.5, "4": 0.5}, 2)


@pytest.mark.parametrize("rewards", [(0.2, 0.9), (0.9, 0.2)])
def test_pass_at_k_of_real_rewards_does_not_depend_on_their_order(
    tmp_path: Path, rewards: tuple[float, float]
) -> None:
    run = write_run(tmp_path / "run", graded("t", *rewards))
    found = summarise(run, pass_reward=0.5)
    assert found.pass_at == {"1": 0.5, "2": 1.0}


def test_every_task_has_the_same_estimator_whatever_its_rewards(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", graded("verdicts", 1, 0) + graded("shades", 0.4, 0.6, index=1))
    assert summarise(run, pass_reward=0.5).pass_at == {"1": 0.5, "2": 1.0}


def test_the_interval_treats_samples_of_a_task_as_dependent(tmp_path: Path) -> None:
    """Four tasks, each all right or all wrong: more samples of them say nothing new."""
    few, many = (
        [
            rollout
            for index in range(4)
            for rollout in graded(f"t{index}", *[float(index % 2)] * samples, index=index)
        ]
        for samples in (2, 16)
    )
    intervals = [
        summarise(write_run(tmp_path / str(len(rollouts)), rollouts)).reward for rollouts in (few, many)
    ]
    assert intervals[0] is not None
    assert intervals[1] is not None
    assert (intervals[0].low, intervals[0].high) == pytest.approx((intervals[1].low, intervals[1].high))
    assert (intervals[0].n, intervals[1].n) == (8, 64)


def test_the_number_of_an_attempt_is_no_metric(tmp_path: Path) -> None:
    retried = make_rollout("t", attempt=2, grade="graded", reward=1.0)
    failed = make_rollout("t", status="failed", stop="error", error=FAILED)
    entry = only(write_run(tmp_path / "run", [failed, retried]))
    assert not [name for name in (*entry.key_metrics, *entry.agent_metrics.spread) if "attempt" in name]


def test_what_an_environment_measures_does_not_hide_the_usage_of_the_same_name(tmp_path: Path) -> None:
    [rollout] = graded(
        "t", 1.0, metrics={"prompt_tokens": 7.0, "reward": 9.0}, usage=Usage(prompt_tokens=100)
    )
    entry = only(write_run(tmp_path / "run", [rollout]))
    spread = entry.agent_metrics.spread
    assert (spread["metric/prompt_tokens"].mean, spread["usage/prompt_tokens"].mean) == (7.0, 100.0)
    assert (spread["metric/reward"].mean, spread["reward"].mean) == (9.0, 1.0)
    assert entry.key_metrics["mean/reward"] == 1.0


def test_a_task_of_which_every_rollout_failed_is_listed(tmp_path: Path) -> None:
    lost = make_rollout("lost", index=1, status="failed", stop="error", error=FAILED)
    entry = only(write_run(tmp_path / "run", [*graded("t", 1.0), lost]))
    assert [(group.key, group.n, group.mean) for group in entry.group_level_metrics] == [
        ("t", 1, 1.0),
        ("lost", 0, None),
    ]
