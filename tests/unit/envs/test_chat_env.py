"""`chat`: the row opens a conversation, and a user answers: by a script, by a function, or played by a model."""

from __future__ import annotations

import json
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.model_server import ModelServer
from windrow import Completion, Request
from windrow.errors import UsageError
from windrow.records import Call
from windrow.store.manifest import read_manifest

HERE = "tests.unit.envs.test_chat_env"


def echo(request: Request) -> str:
    return f"reply {request.turn}"


async def talk(run: Any, *, user: Any = None, row: Any = None, policy: Any = echo, **options: Any) -> Any:
    sets = ["env.name=chat", *([f"env.settings.user={json.dumps(user)}"] if user is not None else [])]
    options = {"retries": 0, "call_retries": 0, "out": str(run), **options}
    await collected([row or {"prompt": "hello"}], policy=answering(policy), sets=sets, **options)
    [rollout] = windrow.load(run)
    return rollout


def spoken(rollout: windrow.Rollout) -> list[tuple[str, str]]:
    return [(message.origin, message.text) for message in rollout.messages]


async def test_a_script_is_said_to_its_end_and_the_reply_to_its_last_line_ends_it(tmp_path) -> None:
    rollout = await talk(tmp_path / "run", user={"script": ["why?", "thanks"]})
    assert (rollout.status, rollout.stop) == ("completed", "env_done")
    assert spoken(rollout) == [
        ("task", "hello"),
        ("policy", "reply 0"),
        ("user", "why?"),
        ("policy", "reply 1"),
        ("user", "thanks"),
        ("policy", "reply 2"),
    ]


async def test_a_row_may_bring_its_own_script(tmp_path) -> None:
    row = {
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "script": ["x"],
    }
    rollout = await talk(tmp_path / "run", row=row)
    assert [text for _, text in spoken(rollout)] == ["s", "u", "reply 0", "x", "reply 1"]


async def test_a_conversation_that_does_not_end_is_truncated_by_its_turns(tmp_path) -> None:
    rollout = await talk(tmp_path / "run", user={"script": ["more"] * 9}, max_turns=2)
    assert (rollout.status, rollout.stop, len(rollout.turns)) == ("truncated", "max_turns", 2)


async def counting(task: Any, messages: list[dict[str, Any]]) -> str | None:
    return f"{task['goal']} after {len(messages)}" if len(messages) < 4 else None


async def test_a_function_may_be_the_user(tmp_path) -> None:
    rollout = await talk(
        tmp_path / "run", user=f"{HERE}:counting", row={"prompt": "hello", "goal": "a flight"}
    )
    assert [text for origin, text in spoken(rollout) if origin == "user"] == ["a flight after 2"]
    assert (rollout.status, rollout.stop) == ("completed", "env_done")


def wrong(task: Any, messages: Any) -> int:
    return 7


async def test_a_user_who_says_something_else_than_text_fails_the_attempt(tmp_path) -> None:
    rollout = await talk(tmp_path / "run", user=f"{HERE}:wrong")
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner) == ("failed", "env")


async def test_nobody_speaks_while_calls_are_being_answered(tmp_path) -> None:
    def calling(request: Request) -> Any:
        call = Call(id="c", name="none", arguments="{}")
        return Completion(content=None, tool_calls=(call,)) if request.turn == 0 else "done"

    rollout = await talk(tmp_path / "run", user={"script": ["next"]}, policy=calling)
    assert [message.origin for message in rollout.messages] == [
        *("task", "policy", "tool", "policy", "user", "policy")
    ]


# -- a model that plays the user


def player(request: Request) -> Any:
    seen.append([(m.role, m.text) for m in request.messages])
    said = sum(m.role == "assistant" for m in request.messages)
    return "and then?" if said < 3 else "fine. [END]"


seen: list[Any] = []


async def test_a_model_plays_the_user_until_it_says_its_stop_word(tmp_path) -> None:
    seen.clear()
    user = {
        "policy": {"model": f"scripted:{HERE}:player", "sampling": {"temperature": 0.5}},
        "prompt": "You want {{ goal }}.",
    }
    rollout = await talk(tmp_path / "run", user=user, row={"prompt": "hello", "goal": "tea"})
    assert (rollout.status, rollout.stop) == ("completed", "env_done")
    assert [text for origin, text in spoken(rollout) if origin == "user"] == [
        *("and then?", "and then?", "fine. [END]")
    ]
    assert seen[1] == [
        ("system", "You want tea."),
        ("user", "(The conversation begins.)"),
        ("assistant", "hello"),
        ("user", "reply 0"),
        ("assistant", "and then?"),
        ("user", "reply 1"),
    ]
    assert (rollout.metrics["user_calls"], len(rollout.turns)) == (3, 3)
    assert rollout.metrics["user_prompt_tokens"] > 0
    assert rollout.metrics["user_completion_tokens"] == 2 + 2 + 2
    # What the user cost is not the policy's.
    assert rollout.usage.completion_tokens == sum(t.usage.completion_tokens for t in rollout.turns)
    assert read_manifest(tmp_path / "run").behaviour.of["models"] == {
        "user": {
            "policy": {"policy": "scripted", "model": f"scripted:{HERE}:player"},
            "sampling": {"temperature": 0.5},
        }
    }


async def test_a_field_that_the_users_prompt_lacks_is_found_before_anybody_is_asked(tmp_path) -> None:
    user = {"policy": {"model": f"scripted:{HERE}:player"}, "prompt": "You want {{ goal }}."}
    rollout = await talk(tmp_path / "run", user=user)
    assert rollout.error is not None
    assert (rollout.status, rollout.turns, "goal" in rollout.error.message) == ("failed", (), True)


async def behaviour(run: Any, url: str) -> str:
    user = {"policy": {"model": "m", "base_url": url, "probe": False}, "prompt": "Be rude.", "stop": "ok"}
    rollout = await talk(run, user=user)
    assert rollout.status == "completed", rollout.error
    return str(rollout.id)


async def test_where_the_users_model_is_served_does_not_change_the_ids(tmp_path) -> None:
    with ModelServer("ok") as one, ModelServer("ok") as two:
        assert await behaviour(tmp_path / "1", one.url) == await behaviour(tmp_path / "2", two.url)


async def test_a_users_model_that_cannot_be_reached_is_infrastructures_failure(tmp_path) -> None:
    user = {
        "policy": {
            "model": "m",
            "base_url": "http://127.0.0.1:9/v1",
            "probe": False,
            "call_retries": 1,
            "backoff_s": 0,
        },
        "prompt": "Be brief.",
    }
    rollout = await talk(tmp_path / "run", user=user)
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner, rollout.error.phase) == ("failed", "infra", "env")
    assert rollout.metrics["user_calls"] == 1


def refusing(request: Request) -> Any:
    return 7


async def test_a_users_model_that_refuses_is_the_environments_failure_not_the_policys(tmp_path) -> None:
    user = {"policy": {"model": f"scripted:{HERE}:refusing"}, "prompt": "Be brief."}
    rollout = await talk(tmp_path / "run", user=user)
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner) == ("failed", "env")


REFUSED = {
    "two users": ({"script": ["a"], "function": f"{HERE}:counting"}, "one of"),
    "no user": ({}, "one of"),
    "no prompt": ({"policy": {"model": "m"}}, "needs 'user.prompt'"),
    "a prompt for a script": ({"script": ["a"], "prompt": "x"}, "would ignore"),
    "an unknown key": ({"scripts": ["a"]}, "scripts"),
    "an unknown key of the model": ({"policy": {"modell": "m"}, "prompt": "x"}, "modell"),
    "tool calls of a model without tools": (
        {"policy": {"model": f"scripted:{HERE}:player", "tool_calls": "hermes"}, "prompt": "x"},
        "would ignore tool_calls",
    ),
    "a setting of another kind of model": (
        {"policy": {"model": f"scripted:{HERE}:player", "base_url": "http://x"}, "prompt": "x"},
        "would ignore policy.base_url",
    ),
    "sampling that the model does not take": (
        {"policy": {"model": "m", "base_url": "http://x", "sampling": {"temprature": 1}}, "prompt": "x"},
        "temprature",
    ),
    "a function that is not there": ("nowhere:fn", "nowhere"),
    "a template that is none": ({"policy": {"model": "m"}, "prompt": "{{ x"}, "template"),
}


@pytest.mark.parametrize(("user", "says"), REFUSED.values(), ids=REFUSED)
async def test_settings_that_make_no_user_are_refused_before_the_run(tmp_path, user, says) -> None:
    with pytest.raises(UsageError, match=says):
        await talk(tmp_path / "run", user=user)
    assert not (tmp_path / "run").exists()


async def test_a_row_without_a_script_needs_a_user(tmp_path) -> None:
    rollout = await talk(tmp_path / "run")
    assert rollout.error is not None
    assert "nobody plays the user" in rollout.error.message
