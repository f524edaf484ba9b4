"""A clock that jumps: no duration comes from it, and no run depends on it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.faults.conftest import MODELS, Bench, Door
from tests.support.raw_server import WireServer, http
from windrow.policies.calls import MAX_RETRY_AFTER_S, pause_s

HOUR_S = 3600.0
REAL = time.time


def jumping() -> Callable[[], float]:
    """Hours ahead, hours back, at every look; further back each time."""
    steps = itertools.cycle([5 * HOUR_S, -7 * HOUR_S, 30 * HOUR_S, -40 * HOUR_S])
    off = itertools.accumulate(steps)
    return lambda: REAL() + next(off)


def seconds_in(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every duration that is written down."""
    if isinstance(value, dict):
        for key, below in value.items():
            inside = name == "timing" and key != "started_at"
            if (inside or key.endswith(("seconds", "_s"))) and isinstance(below, float):
                yield key, below
            yield from seconds_in(below, key)
    elif isinstance(value, list):
        for below in value:
            yield from seconds_in(below, name)


def test_a_clock_that_jumps_by_hours_changes_no_duration_and_stops_no_run(
    bench: Bench, served: Callable[..., WireServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    served(Door(http(503, b"busy")))
    monkeypatch.setattr(time, "time", jumping())
    ended = bench.collect("-k", "3", "--call-timeout", "60", "--episode-timeout", "60")
    assert ended.code == 1
    assert "15 of 18 done" in ended.err
    found = [found for line in bench.lines() for found in seconds_in(line)]
    assert len(found) > 18 * 5
    assert [(name, value) for name, value in found if not 0 <= value < 60] == []


def test_a_run_goes_on_under_a_clock_that_went_back_for_years(
    bench: Bench, served: Callable[..., WireServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(http(503, b"busy"))
    server = served(door)
    assert bench.collect().code == 1
    door.fault = None
    monkeypatch.setattr(time, "time", lambda: 86_400.0)
    assert bench.collect().code == 0
    assert len(bench.lines()) == 7
    assert bench.finals()["q3"].attempt == 2  # the last attempt is the highest, not the latest
    assert server.count("/chat/completions") == 5 + 2 + 1


@pytest.mark.parametrize("date", ["Fri, 31 Dec 2199 23:59:59 GMT", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_a_date_to_wait_for_is_bounded_whatever_the_clock_says(
    date: str, bench: Bench, served: Callable[..., WireServer]
) -> None:
    served(lambda request: MODELS if request.method == "GET" else http(429, b"later", {"Retry-After": date}))
    assert bench.collect("--call-retries", "0").code == 1
    assert pause_s(0, 1.0, 1e12) <= MAX_RETRY_AFTER_S * 1.1
