"""What an evaluate tool answered, as a reward: found where HUD finds it, and a failed grading where HUD says 0."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.hud_rows import v4
from windrow.errors import ScorerError
from windrow.integrations.hud.env import permits
from windrow.integrations.hud.rewards import find_reward
from windrow.integrations.hud.servers import redact
from windrow.integrations.hud.tasks import read_task
from windrow.tools.mcp_session import McpAnswer


def reward(structured: Any = None, *texts: str) -> float:
    return find_reward(McpAnswer(texts=texts, structured=structured), "judge").reward


@pytest.mark.parametrize(
    ("structured", "texts", "found"),
    [
        ({"reward": 0.5, "grade": 1, "score": 2}, (), 0.5),
        ({"grade": 1, "score": 2}, (), 1.0),
        ({"score": -2, "subscores": {"a": 1}, "weights": {"a": 9}}, (), -2.0),
        ({"reward": True}, (), 1.0),
        ({"reward": 1, "subscores": {"a": 10**400}}, (), 1.0),
        ({"subscores": {"a": 1, "b": 0.5, "c": 9}, "weights": {"a": 0.5, "b": 1, "d": 3}}, (), 1.0),
        ({"subscores": {}, "weights": {}}, (), 0.0),
        (None, ("well done", '{"other": 1, "score": 0.25, "reward": 1}', '{"reward": 1}'), 0.25),
        ({"other": 1}, ('["reward"]', '{"grade": 0.5}'), 0.5),
    ],
)
def test_a_reward_is_found_in_the_order_in_which_hud_looks(structured, texts, found) -> None:
    assert reward(structured, *texts) == found


@pytest.mark.parametrize(
    ("structured", "texts", "kind"),
    [
        (None, (), "no_reward"),
        ({"verdict": "fine"}, ("well done", "[1]", '{"points": 1}'), "no_reward"),
        ({"subscores": [1], "weights": [1]}, (), "no_reward"),
        ({"reward": "0.5"}, (), "bad_reward"),
        ({"reward": None}, (), "bad_reward"),
        ({"subscores": {"a": "x"}, "weights": {"a": 1}}, (), "bad_reward"),
        ({"subscores": {"a": 1e308, "b": 1e308}, "weights": {"a": 10, "b": 1}}, (), "bad_reward"),
        (None, ('{"score": "high"}',), "bad_reward"),
        ({"reward": 10**400}, (), "bad_reward"),
        (None, (f'{{"score": -1{"0" * 400}}}',), "bad_reward"),
        ({"reward": float("nan")}, (), "bad_reward"),
    ],
)
def test_what_is_no_reward_fails_the_grading(structured, texts, kind) -> None:
    with pytest.raises(ScorerError) as failed:
        reward(structured, *texts)
    assert failed.value.kind == kind


def test_a_tool_that_failed_has_not_judged_whatever_else_it_says() -> None:
    with pytest.raises(ScorerError, match="the evaluate tool 'judge' failed: gone") as failed:
        find_reward(McpAnswer(texts=("gone",), structured={"reward": 1.0}, failed=True), "judge")
    assert failed.value.kind == "evaluate_failed"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["reward", "score", "subscores", "weights", "a", "b"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@given(JSON, st.lists(st.text(max_size=20), max_size=2))
def test_any_answer_is_a_finite_number_or_a_failed_grading(structured: Any, texts: list[str]) -> None:
    try:
        found = reward(structured, *texts)
    except ScorerError:
        return
    assert abs(found) < float("inf")


@pytest.mark.parametrize(
    ("agent", "shown"),
    [
        ({}, "look read_page write_page"),
        ({"allowed_tools": ["*"]}, "look read_page write_page"),
        ({"allowed_tools": ["*_page"]}, "read_page write_page"),
        ({"allowed_tools": ["*_page"], "disallowed_tools": ["write_*"]}, "read_page"),
        ({"disallowed_tools": ["?ook"]}, "read_page write_page"),
        ({"allowed_tools": []}, ""),
    ],
)
def test_the_model_sees_what_is_allowed_and_then_not_denied(agent, shown) -> None:
    task = read_task(v4(agent_config=agent))
    assert [name for name in ("look", "read_page", "write_page") if permits(task, name)] == shown.split()


def test_secrets_of_the_environment_are_concealed_and_defaults_are_not(monkeypatch) -> None:
    monkeypatch.setenv("HUD_TEST_KEY", "sk-0123456789")
    monkeypatch.setenv("HUD_TEST_PLACE", "berlin-lisbon")
    monkeypatch.setenv("HUD_TEST_GUEST", "guest-of-the-house")
    monkeypatch.setenv("HUD_TEST_DB_PASSWD", "open-sesame")
    monkeypatch.delenv("HUD_TEST_OTHER", raising=False)
    headers = {
        "Authorization": "Bearer ${HUD_TEST_PLACE}",
        "X-Api-Key": "${HUD_TEST_OTHER:nothing-secret}",
        "X-Guest": "as ${HUD_TEST_GUEST}",
    }
    servers = {
        "a": {"url": "http://h/${HUD_TEST_KEY}", "headers": headers},
        "b": {"command": "serve", "env": {"DB": "${HUD_TEST_DB_PASSWD}"}},
    }
    hidden: set[str] = set()
    redact(servers, hidden.add)
    keys = {"sk-0123456789", "open-sesame", "guest-of-the-house"}
    assert hidden == {*keys, "Bearer berlin-lisbon", "berlin-lisbon"}
