"""`--concurrency auto`: grow while the endpoint keeps up, halve when it does not."""

from __future__ import annotations

from windrow.engine.adaptive_limit import START, AdaptiveLimit


def window(pace: AdaptiveLimit, seconds: float = 0.1) -> int:
    """One window of calls that were answered in `seconds`; the limit after it."""
    for _ in range(pace.limit):
        pace.saw(seconds, overloaded=False)
    return pace.limit


def test_a_fixed_pace_stays_what_it_is() -> None:
    pace = AdaptiveLimit(64)
    pace.saw(0.1, overloaded=True)
    window(pace)
    assert (pace.limit, pace.most) == (64, 64)


def test_it_grows_while_the_latency_stays_low_and_never_beyond_the_most() -> None:
    pace = AdaptiveLimit(100, adaptive=True)
    assert pace.limit == START
    grown: list[int] = []
    pace.grown = lambda: grown.append(pace.limit)
    limits = [window(pace) for _ in range(8)]
    assert limits == sorted(limits)
    assert limits[0] == 24
    assert limits[-1] == 100
    assert grown[-1] == 100


def test_it_does_not_grow_when_calls_take_twice_as_long_as_they_did() -> None:
    pace = AdaptiveLimit(1000, adaptive=True)
    reached = [window(pace, 0.1) for _ in range(3)][-1]
    assert window(pace, 0.3) == reached
    assert window(pace, 0.1) > reached


def test_an_overload_halves_once_however_many_of_the_calls_under_way_report_it() -> None:
    pace = AdaptiveLimit(1000, adaptive=True)
    reached = [window(pace) for _ in range(3)][-1]
    for _ in range(reached):
        pace.saw(0.1, overloaded=True)
    assert pace.limit == reached // 2
    pace.saw(0.1, overloaded=True)  # one that began after the halving: it was not enough
    assert pace.limit == reached // 4


def test_after_an_overload_it_grows_slowly_and_never_falls_below_one() -> None:
    pace = AdaptiveLimit(1000, adaptive=True)
    for _ in range(5000):
        pace.saw(0.1, overloaded=True)
    assert pace.limit == 1
    for _ in range(3):
        pace.saw(0.1, overloaded=False)
    assert pace.limit <= 3
