"""Names and numbers in little memory: the same answers as a dict and a counter give."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.util.hash_index import DuplicateFinder, HashIndex

pytestmark = pytest.mark.slow

NAMES = st.one_of(st.text(max_size=3), st.tuples(st.text(max_size=2), st.integers(0, 3)))


@given(st.lists(st.tuples(NAMES, st.integers(0, 2**63))), st.lists(NAMES))
def test_an_index_says_what_a_dict_says(entries: list[tuple[object, int]], others: list[object]) -> None:
    index = HashIndex()
    for name, number in entries:
        index.set(name, number)
    expected = dict(entries)
    assert len(index) == len(expected)
    assert {name: index.get(name) for name in [*expected, *others]} == {
        name: expected.get(name) for name in [*expected, *others]
    }


@given(st.lists(NAMES))
def test_names_that_are_numbered_at_once_have_their_positions(names: list[object]) -> None:
    index = HashIndex.numbering(names, len(names))
    assert {name: index.get(name) for name in names} == {name: n for n, name in enumerate(names)}


def test_an_index_grows_and_forgets_nothing() -> None:
    index = HashIndex()
    for number in range(20_000):
        index.set(f"name-{number}", number)
    assert [index.get(f"name-{number}") for number in range(20_000)] == list(range(20_000))
    assert index.get("name-20000") is None
    assert len(index) == 20_000


@given(st.lists(NAMES))
def test_every_repeated_name_is_found(names: list[object]) -> None:
    repeats = DuplicateFinder()
    for name in names:
        repeats.add(name)
    found = repeats.duplicates()
    assert {name for name in names if name in found} == {
        name for name, count in Counter(names).items() if count > 1
    }
    assert bool(found) == (len(set(names)) < len(names))


@pytest.mark.slow
def test_names_are_held_in_little_memory() -> None:
    tracemalloc.start()
    try:
        index, repeats = HashIndex(), DuplicateFinder()
        empty, _ = tracemalloc.get_traced_memory()
        for number in range(50_000):
            repeats.add(f"name-{number}")
        of_repeats = tracemalloc.get_traced_memory()[0] - empty
        for number in range(50_000):
            index.set(f"name-{number}", number)
        of_index = tracemalloc.get_traced_memory()[0] - empty - of_repeats
    finally:
        tracemalloc.stop()
    assert of_repeats < 50_000 * 8
    assert of_index < 50_000 * 48
