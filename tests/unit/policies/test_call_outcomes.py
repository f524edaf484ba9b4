"""What whoever paces a run is told of each try of a call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import collected
from tests.support.model_server import ModelServer
from windrow.policies.base import CallOutcome
from windrow.policies.chat import ChatPolicy


@pytest.mark.parametrize(
    ("status", "overloaded"), [(429, True), (503, True), (500, False), (408, False)], ids=str
)
async def test_every_try_is_told_with_whether_there_was_too_much_to_do(
    stub: Callable[..., ModelServer], tmp_path: Path, status: int, overloaded: bool
) -> None:
    told: list[CallOutcome] = []
    server = stub(lambda body, n: (status, {}, "later") if n < 2 else "4")
    policy = ChatPolicy("stub", [server.url])
    policy.on_call = told.append
    await collected([{"prompt": "2 + 2?", "answer": "4"}], policy=policy, out=str(tmp_path / "run"))
    assert [(outcome.ok, outcome.overloaded) for outcome in told] == [
        (False, overloaded),
        (False, overloaded),
        (True, False),
    ]
    assert all(0 < outcome.seconds < 60 for outcome in told)


async def test_a_call_that_takes_too_long_is_an_overload(
    stub: Callable[..., ModelServer], tmp_path: Path
) -> None:
    told: list[CallOutcome] = []
    policy = ChatPolicy("stub", [stub("4", latency_s=60).url])
    policy.on_call = told.append
    options: dict[str, Any] = {"call_timeout": 0.2, "retries": 0, "out": str(tmp_path / "run")}
    await collected([{"prompt": "2 + 2?", "answer": "4"}], policy=policy, **options)
    assert [(outcome.ok, outcome.overloaded) for outcome in told] == [(False, True)]
    assert told[0].seconds >= 0.2
