"""Processes that give verdicts: they stand by between questions, and none that has ended is asked in vain."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from windrow.errors import ScorerError
from windrow.grading.verdict_processes import Processes

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def processes() -> Processes:
    return Processes("tests.support.pid_process", who="scorer 'pid'", at_once=1, environment=ENVIRONMENT)


async def test_a_process_is_asked_again_and_one_that_has_ended_meanwhile_is_replaced() -> None:
    asked = processes()
    first = await asked.ask({})
    assert await asked.ask({}) == first
    os.kill(int(first or b"0"), signal.SIGKILL)
    os.waitid(os.P_PID, int(first or b"0"), os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 (it has been killed)
    second = await asked.ask({})
    assert second != first
    assert await asked.ask({}) == second


async def test_a_question_that_ends_every_process_is_an_error_and_the_next_is_answered() -> None:
    asked = processes()
    assert await asked.ask({})
    with pytest.raises(ScorerError, match="scorer 'pid': its process ended with 7"):
        await asked.ask({"end": True})
    assert await asked.ask({})
