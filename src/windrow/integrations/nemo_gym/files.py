"""NeMo Gym's files: their names, and the content of a line in each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from windrow.envs.opening import check_opening, opening
from windrow.integrations.nemo_gym.results import asked_params, result_row
from windrow.integrations.nemo_gym.rows import (
    AGENT,
    ATTEMPT_INDEX,
    FAILURE_CLASS,
    FAILURE_TERMINAL,
    JUDGE_ERROR,
    PARAMS,
    ROLLOUT_INDEX,
    TASK_INDEX,
    agent_of,
    with_overrides,
    with_seed,
)
from windrow.records import Json, Rollout, Task
from windrow.tasks.row_formats import sampling_of
from windrow.util.freeze import Freezer

JUDGE_FAILED = "judge_failed"


class Files(NamedTuple):
    """The files beside the rollouts, named after the rollouts' file."""

    inputs: Path
    failures: Path
    profile: Path
    agents: Path
    aggregate: Path


def files_of(rollouts: Path) -> Files:
    def beside(what: str, suffix: str) -> Path:
        return rollouts.with_name(f"{rollouts.stem}_{what}.{suffix}")

    return Files(
        inputs=beside("materialized_inputs", "jsonl"),
        failures=beside("failures", "jsonl"),
        profile=beside("reward_profiling", "jsonl"),
        agents=beside("agent_metrics", "json"),
        aggregate=beside("aggregate_metrics", "json"),
    )


class RequestSettings(NamedTuple):
    """The settings of a run's requests: its sampling, the part that overrides a row's, whether samples are sent as
    seeds, and parameters that are laid over those of each row.
    """

    sampling: Mapping[str, Json]
    over_rows: frozenset[str]
    seeds: bool
    overrides: Mapping[str, Json]


def task_input(task: Task, asked: RequestSettings, agent: str) -> dict[str, Json]:
    """Return a task as their collector has it before numbering. It has no input if only a prompt template makes one."""
    row = dict(task.data or {})
    try:
        check_opening(row)
        freeze = Freezer()
        opened = [freeze.message(message, "task") for message in opening(task, None)]
    except ValueError:
        opened = []
    row_sampling = {key: value for key, value in sampling_of(row).items() if key not in asked.over_rows}
    params = asked_params(row, {**asked.sampling, **row_sampling}, opened)
    row[PARAMS] = with_overrides(params, asked.overrides)
    row.setdefault(AGENT, {"name": agent})
    return row


def input_row(given: Mapping[str, Json], task: int, sample: int, asked: RequestSettings) -> dict[str, Json]:
    """Return a line of the materialised inputs."""
    params = with_seed(given[PARAMS], sample) if asked.seeds else given[PARAMS]
    return {**given, PARAMS: params, TASK_INDEX: task, ROLLOUT_INDEX: sample}


def success_row(rollout: Rollout, *, failures: int, seeds: bool) -> dict[str, Json]:
    """Return a line of the rollouts; `failures` counts the failed attempts before it."""
    answer = result_row(rollout)
    if seeds and isinstance(answer.get(PARAMS), dict):
        answer[PARAMS] = with_seed(answer[PARAMS], rollout.sample)
    answer.setdefault(AGENT, agent_ref(rollout))
    marks = {TASK_INDEX: rollout.task.index, ROLLOUT_INDEX: rollout.sample}
    return {**answer, **marks, **({ATTEMPT_INDEX: failures} if failures else {})}


def failure_row(rollout: Rollout, *, failures: int, seeds: bool) -> dict[str, Json]:
    """Return a line of the failures: an attempt that failed, or that could not be judged."""
    line = success_row(rollout, failures=failures, seeds=seeds)
    error = rollout.error
    if rollout.status != "failed":
        judge_error = error.message if error is not None else "nobody could judge it"
        return {**line, FAILURE_CLASS: JUDGE_FAILED, JUDGE_ERROR: judge_error}
    line[FAILURE_CLASS] = error.kind if error is not None else "unknown"
    if error is not None and not error.retryable:
        line[FAILURE_TERMINAL] = True
    if error is not None and rollout.state is None:
        line.setdefault("error", error.message)
    return line


def agent_ref(rollout: Rollout) -> dict[str, Json]:
    """Return the row's own reference, with all that it says of the agent; else one by the agent's name."""
    row = rollout.task.data or {}
    return dict(row[AGENT]) if agent_of(row) is not None else {"name": rollout.agent}
