"""Addresses of tasks in other packages, `PACKAGE:NAME?KEY=VALUE`: whatever is typed is read or refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import UsageError
from windrow.integrations.addresses import parse_address
from windrow.integrations.gymnasium.descriptions import KNOWN
from windrow.integrations.gymnasium.env import read_action


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("a=7", {"a": 7}),
        ("a=0.5&b=false", {"a": 0.5, "b": False}),
        ("a=[1, 2]", {"a": [1, 2]}),
        ("a=null", {"a": None}),
        ("a=x%26y&b=", {"a": "x&y", "b": ""}),
        ("a=2024-01-01", {"a": "2024-01-01"}),
        ("a=[1", {"a": "[1"}),
    ],
)
def test_a_value_is_a_number_a_truth_a_list_or_text(query: str, parameters: dict[str, Any]) -> None:
    assert parse_address(f"p:name?{query}").parameters == parameters


def test_a_source_is_called_the_same_however_its_parameters_are_written() -> None:
    one, two = parse_address("p:name?b=1.0&a=true&size=5"), parse_address("p:name?a=True&b=1.0")
    assert one.source(without=["size"]) == two.source(without=["size"]) == "p:name?a=true&b=1.0"
    assert parse_address("p:name?size=5").source(without=["size"]) == "p:name"


@given(st.text())
def test_whatever_is_typed_is_an_address_or_a_usage_error(text: str) -> None:
    try:
        address = parse_address(f"gymnasium:{text}")
    except UsageError:
        return
    assert address.name
    address.source(without=[])


@given(st.text(st.sampled_from("[]0123456789 .-leftrighupdown")), st.sampled_from(sorted(KNOWN)))
def test_whatever_is_said_is_an_action_or_none(text: str, name: str) -> None:
    found = read_action(text, KNOWN[name])
    assert found is None or 0 <= found < len(KNOWN[name].actions)


def test_a_very_long_reply_is_read_at_once() -> None:
    assert read_action("1" * 1_000_000 + "a1 [2]", KNOWN["FrozenLakeEnv"]) == 2
    assert read_action("[" * 1_000_000, KNOWN["FrozenLakeEnv"]) is None
    assert read_action("1" * 1_000_000 + "a1", KNOWN["FrozenLakeEnv"]) is None
