"""An import that is killed on the way: the same command takes what is missing, and nothing twice."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.support.command_process import Project
from tests.support.nemo_gym_files import failure, inputs, success, write
from tests.support.task_reading import lines_are_unique, records

pytestmark = pytest.mark.slow

TASKS, REPEATS = 400, 4
POLICY = ("--model", "scripted:script.yaml")


def test_an_import_that_is_killed_ends_like_one_that_never_was(project: Callable[..., Project]) -> None:
    home = project(lambda body, n: "never asked")
    (home.path / "script.yaml").write_text("replies: [{reply: '7'}]\n")
    write(home.path / "gym_materialized_inputs.jsonl", inputs(TASKS, REPEATS))
    write(home.path / "gym_failures.jsonl", [failure(task, 0, "transient") for task in range(TASKS)])
    done = [success(task, rollout) for task in range(TASKS) for rollout in range(REPEATS - 1)]
    write(home.path / "gym.jsonl", done)
    command = ("import", "--from", "nemo-gym", "gym.jsonl", *POLICY, "--quiet", "--out")
    assert home.windrow(*command, "uninterrupted").code == 0
    log = home.path / "killed" / "rollouts.jsonl"
    sizes = []
    for least in (1, 300_000):
        running = home.start(*command, "killed")
        running.until(lambda: log.exists() and log.stat().st_size > least, "something was committed")  # noqa: B023
        running.signal(signal.SIGKILL)
        running.wait()
        sizes.append(log.stat().st_size)
    assert home.windrow(*command, "killed").code == 0
    assert sizes[0] < log.stat().st_size
    assert lines_are_unique(home.path / "killed")
    assert records(home.path / "killed") == records(home.path / "uninterrupted")
