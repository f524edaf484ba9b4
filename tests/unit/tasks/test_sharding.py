"""Shares of ranks: together they are the whole, none overlaps another, and each is as large as its weight says."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.tasks.sharding import Rank, shares

pytestmark = pytest.mark.slow

WEIGHTS = st.lists(
    st.one_of(
        st.integers(1, 40), st.integers(1, 10**6), st.sampled_from([0.1, 0.25, 0.5, 1.5, 2.0, 3.7, 1e-3])
    ),
    min_size=1,
    max_size=9,
)


def exact(weights: list[float], rank: int, count: int) -> Fraction:
    written = [Fraction(str(weight)) for weight in weights]
    return written[rank] / sum(written) * count


def parts(weights: list[float], count: int) -> list[list[int]]:
    return [list(Rank(number, tuple(weights)).positions(count)) for number in range(len(weights))]


@settings(max_examples=max(40, settings().max_examples // 2))
@given(WEIGHTS, st.integers(0, 150))
def test_ranks_together_have_every_task_once_and_in_order(weights: list[float], count: int) -> None:
    found = parts(weights, count)
    assert sorted(position for part in found for position in part) == list(range(count))
    assert all(part == sorted(part) for part in found)


@settings(max_examples=max(40, settings().max_examples // 2))
@given(WEIGHTS, st.integers(0, 150))
def test_a_share_is_within_one_of_exact_for_the_whole_plan_and_for_every_beginning_of_it(
    weights: list[float], count: int
) -> None:
    for rank, part in enumerate(parts(weights, count)):
        portion = exact(weights, rank, 1)
        for had, position in enumerate([*part, count]):  # just before each of its tasks, and just after
            assert position * portion - had < 1
            assert had == 0 or had - (part[had - 1] + 1) * portion < 1


@settings(max_examples=max(40, settings().max_examples // 2))
@given(WEIGHTS, st.integers(0, 80), st.integers(0, 80))
def test_no_task_changes_hands_when_the_plan_grows(weights: list[float], count: int, more: int) -> None:
    grown = parts(weights, count + more)
    kept = [[position for position in part if position < count] for part in grown]
    assert kept == parts(weights, count)


@settings(max_examples=max(40, settings().max_examples // 2))
@given(WEIGHTS, st.integers(0, 10**9))
def test_places_are_shared_out_whole_and_within_one_of_exact(weights: list[float], total: int) -> None:
    found = shares(total, weights)
    assert sum(found) == total
    assert all(abs(share - exact(weights, rank, total)) < 1 for rank, share in enumerate(found))


@settings(max_examples=max(40, settings().max_examples // 2))
@given(WEIGHTS, st.integers(0, 10**4))
def test_what_rounding_leaves_goes_to_the_largest_remainders(weights: list[float], total: int) -> None:
    found = shares(total, weights)
    rests = [exact(weights, rank, total) % 1 for rank in range(len(weights))]
    lucky = [rank for rank in range(len(weights)) if found[rank] > exact(weights, rank, total)]
    for rank in lucky:
        for other in set(range(len(weights))) - set(lucky):
            assert (rests[rank], -rank) >= (rests[other], -other)


@pytest.mark.parametrize(
    ("total", "weights", "expected"),
    [
        (64, [2, 1, 1], [32, 16, 16]),
        (10, [2, 1, 1], [5, 3, 2]),
        (7, [1, 1, 1], [3, 2, 2]),
        (1, [1, 2], [0, 1]),
        (2, [1, 1, 1], [1, 1, 0]),
        (3, [0.5, 0.25, 0.25], [1, 1, 1]),
    ],
)
def test_shares_by_hand(total: int, weights: list[float], expected: list[int]) -> None:
    assert shares(total, weights) == expected
    assert [len(part) for part in parts(weights, total)] == expected


def test_as_many_ranks_as_there_can_be_are_shared_out_at_once() -> None:
    rank = Rank(3, (1.0,) * 2**16)
    assert (list(rank.positions(2**16 + 4)), rank.places(64)) == ([3, 2**16 + 3], 1)


def test_a_rank_has_one_place_at_least() -> None:
    assert [Rank(number, (98, 1, 1)).places(2) for number in range(3)] == [2, 1, 1]


def test_tasks_of_a_heavier_rank_are_spread_over_the_plan() -> None:
    assert parts([2, 1, 1], 8) == [[0, 3, 4, 7], [1, 5], [2, 6]]


@given(WEIGHTS, st.integers(1, 40))
def test_slices_of_the_endpoints_are_all_of_them_and_none_is_empty(weights: list[float], count: int) -> None:
    slices = [range(count)[Rank(number, tuple(weights)).endpoints(count)] for number in range(len(weights))]
    assert all(slices)
    assert (slices[0].start, slices[-1].stop) == (0, count)
    for left, right in itertools.pairwise(slices):
        assert right.start in (left.stop, left.stop - 1), "neighbours share one at the most"
    for rank, part in enumerate(slices):
        assert len(part) < exact(weights, rank, count) + 2
