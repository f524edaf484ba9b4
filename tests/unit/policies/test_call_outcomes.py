"""What whoever observes the calls is told of each try, and what the limit on episodes learns from it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.collect_helpers import collected
from tests.support.model_server import ModelServer
from windrow.engine.adaptive_limit import AdaptiveLimit
from windrow.errors import InfraError
from windrow.policies.base import Request
from windrow.policies.calls import CallOutcome, complete
from windrow.policies.chat import ChatPolicy
from windrow.records import Message

REQUEST = Request(
    messages=(Message(role="user", content="2 + 2?", origin="task"),),
    tools=(),
    sampling={},
    id="r",
    attempt=1,
    turn=0,
)


async def outcomes_of(server: ModelServer, *, timeout_s: float = 60) -> list[CallOutcome]:
    """What is observed of one call to this server, with its retries."""
    outcomes: list[CallOutcome] = []
    policy = ChatPolicy("stub", [server.url])
    await policy.open()
    with contextlib.suppress(InfraError):
        await complete(
            policy, REQUEST, retries=5, backoff_s=0.01, timeout_s=timeout_s, observe=outcomes.append
        )
    await policy.close()
    return outcomes


@pytest.mark.parametrize(
    ("status", "overloaded"), [(429, True), (503, True), (500, False), (408, False)], ids=str
)
async def test_every_try_is_told_with_whether_there_was_too_much_to_do(
    stub: Callable[..., ModelServer], status: int, overloaded: bool
) -> None:
    outcomes = await outcomes_of(stub(lambda body, n: (status, {}, "later") if n < 2 else "4"))
    assert [(outcome.ok, outcome.overloaded) for outcome in outcomes] == [
        (False, overloaded),
        (False, overloaded),
        (True, False),
    ]
    assert all(0 < outcome.seconds < 60 for outcome in outcomes)


async def test_a_call_that_takes_too_long_is_an_overload(stub: Callable[..., ModelServer]) -> None:
    outcomes = await outcomes_of(stub("4", latency_s=60), timeout_s=0.2)
    assert [(outcome.ok, outcome.overloaded) for outcome in outcomes] == [(False, True)]
    assert outcomes[0].seconds >= 0.2


@pytest.mark.parametrize("concurrency", ["auto", 4])
async def test_a_run_whose_concurrency_is_found_out_observes_every_try_of_its_policy(
    stub: Callable[..., ModelServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concurrency: int | str
) -> None:
    overloads: list[bool] = []
    monkeypatch.setattr(
        AdaptiveLimit, "call_ended", lambda self, seconds, *, overloaded: overloads.append(overloaded)
    )
    server = stub(lambda body, n: (429, {}, "later") if n == 0 else "4")
    policy = ChatPolicy("stub", [server.url])
    rows = [{"prompt": "2 + 2?", "answer": "4"}, {"prompt": "1 + 3?", "answer": "4"}]
    await collected(rows, policy=policy, concurrency=concurrency, out=str(tmp_path / "run"))
    assert sorted(overloads) == ([False, False, True] if concurrency == "auto" else [])
