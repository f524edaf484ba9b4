"""Retry-After: the endpoint as a whole is left alone, and nobody's retries are used up."""

from __future__ import annotations

import email.utils
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import collected, single
from tests.support.model_server import ModelServer
from windrow.policies import endpoint_pool
from windrow.policies.calls import MAX_ASKED_WAITS
from windrow.policies.endpoint_failures import AGES_S, retry_after

pytestmark = pytest.mark.slow

Start = Callable[..., ModelServer]
TASK = [{"prompt": "2 + 2?", "answer": "4"}]


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def slow_down(seconds: object, status: int = 429) -> Any:
    return (status, {"Retry-After": str(seconds)}, {"error": {"message": "slow down"}})


@pytest.mark.parametrize("status", [429, 503])
async def test_all_calls_wait_not_only_the_one_that_was_told(
    stub: Start, tmp_path: Path, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_pool, "TELL_WAIT_S", 0.0)
    came: list[float] = []
    told = threading.Event()

    def reply(body: dict[str, Any], n: int) -> Any:
        came.append(time.monotonic())
        if n == 0:
            return slow_down(0.5, status)
        if n == 1:  # in flight beside it; the next rollout begins when it is answered
            assert told.wait(60)
        return "4"

    rows = [{"prompt": f"{n}?", "answer": "4"} for n in range(8)]
    options: dict[str, Any] = {"model": "stub", "base_url": stub(reply).url, "out": str(tmp_path / "run")}
    rollouts = await collected(rows, **options, concurrency=2, on_warning=lambda text: told.set())
    assert [r.reward for r in rollouts] == [1.0] * 8
    assert min(came[2:]) - came[0] >= 0.5


async def test_such_waits_use_up_no_retries(stub: Start, tmp_path: Path) -> None:
    server = stub(lambda body, n: slow_down(0.01) if n < 8 else "4")
    rollout = await single(TASK, model="stub", base_url=server.url, out=str(tmp_path / "run"), call_retries=0)
    assert (rollout.reward, rollout.turns[0].retries) == (1.0, 8)


async def test_but_there_is_a_bound(stub: Start, tmp_path: Path) -> None:
    server = stub(lambda body, n: slow_down(0.001))
    rollout = await single(TASK, model="stub", base_url=server.url, out=str(tmp_path / "run"), call_retries=1)
    assert rollout.error is not None
    assert (rollout.error.kind, server.completions) == ("http_429", MAX_ASKED_WAITS + 2)


async def test_a_server_that_wants_to_be_left_alone_for_too_long_stops_the_run(
    stub: Start, tmp_path: Path
) -> None:
    server = stub(lambda body, n: slow_down(86_400))
    rollout = await single(TASK, model="stub", base_url=server.url, out=str(tmp_path / "run"))
    assert rollout.error is not None
    assert (rollout.error.kind, server.completions) == ("outage", 1)
    assert "the server wants no calls for 86,400 s. Run the same command again then" in rollout.error.message


async def test_meanwhile_calls_go_to_another_endpoint(stub: Start, tmp_path: Path) -> None:
    warnings: list[str] = []
    busy, free = stub(lambda body, n: slow_down(3600)), stub("4")
    rows = [{"prompt": f"{n}?", "answer": "4"} for n in range(8)]
    rollouts = await collected(
        rows,
        model="stub",
        base_url=[busy.url, free.url],
        out=str(tmp_path / "run"),
        concurrency=1,
        on_warning=warnings.append,
    )
    assert [r.reward for r in rollouts] == [1.0] * 8
    assert (busy.completions, free.completions) == (1, 8)
    [said] = warnings
    assert said.startswith("calls wait 3600 s, as the server asks: ")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("0", None),
        ("-5", None),
        ("nan", None),
        ("Mon, 16 Nov 1998 00:00:00 GMT", None),
        ("Thu, 99 Foo 2020 00:00:00 GMT", None),
        ("2.5", 2.5),
        ("inf", AGES_S),
        ("31536000", 31_536_000.0),
        (email.utils.formatdate(9e9, usegmt=True), AGES_S),
    ],
)
def test_what_a_server_asks_for_is_bounded(value: str | None, seconds: float | None) -> None:
    assert retry_after(value) == seconds
