"""`--concurrency auto`: grow while the endpoint keeps up, halve when it does not."""

from __future__ import annotations

from windrow.engine.adaptive_limit import START, AdaptiveLimit


def window(limit: AdaptiveLimit, seconds: float = 0.1) -> int:
    """One window of calls that were answered in `seconds`; the limit after it."""
    for _ in range(limit.limit):
        limit.call_ended(seconds, overloaded=False)
    return limit.limit


def test_a_fixed_limit_stays_what_it_is() -> None:
    limit = AdaptiveLimit(64)
    limit.call_ended(0.1, overloaded=True)
    window(limit)
    assert (limit.limit, limit.most) == (64, 64)


def test_it_grows_while_the_latency_stays_low_and_never_beyond_the_most() -> None:
    grown: list[int] = []
    limit = AdaptiveLimit(100, adaptive=True, on_growth=lambda: grown.append(limit.limit))
    assert limit.limit == START
    limits = [window(limit) for _ in range(8)]
    assert limits == sorted(limits)
    assert limits[0] == 24
    assert limits[-1] == 100
    assert grown[-1] == 100


def test_it_does_not_grow_when_calls_take_twice_as_long_as_they_did() -> None:
    limit = AdaptiveLimit(1000, adaptive=True)
    reached = [window(limit, 0.1) for _ in range(3)][-1]
    assert window(limit, 0.3) == reached
    assert window(limit, 0.1) > reached


def test_an_overload_halves_once_however_many_of_the_calls_under_way_report_it() -> None:
    limit = AdaptiveLimit(1000, adaptive=True)
    reached = [window(limit) for _ in range(3)][-1]
    for _ in range(reached):
        limit.call_ended(0.1, overloaded=True)
    assert limit.limit == reached // 2
    limit.call_ended(0.1, overloaded=True)  # one that began after the halving: it was not enough
    assert limit.limit == reached // 4


def test_after_an_overload_it_grows_slowly_and_never_falls_below_one() -> None:
    limit = AdaptiveLimit(1000, adaptive=True)
    for _ in range(5000):
        limit.call_ended(0.1, overloaded=True)
    assert limit.limit == 1
    for _ in range(3):
        limit.call_ended(0.1, overloaded=False)
    assert limit.limit <= 3
