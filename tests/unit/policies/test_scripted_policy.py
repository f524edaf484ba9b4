"""The `scripted` policy: replies by rule or by function, with latency and faults, the same on every run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import collected, single
from windrow import Completion, Env, Observation, Request, Step
from windrow.errors import UsageError
from windrow.records import Call


def script(tmp_path: Path, text: str) -> str:
    file = tmp_path / "script.yaml"
    file.write_text(text, encoding="utf-8")
    return f"scripted:{file}"


def options(tmp_path: Path, text: str, **more: Any) -> dict[str, Any]:
    return {"model": script(tmp_path, text), "out": str(tmp_path / "run"), **more}


class Thrice(Env):
    """Asks the same thing three times."""

    version = 1

    async def reset(self, task) -> Observation:
        self.turns = 0
        return Observation([{"role": "user", "content": task["prompt"]}])

    async def step(self, reply, results) -> Step:
        self.turns += 1
        return Step(messages=[{"role": "user", "content": "again"}], done=self.turns == 3)


async def test_the_first_rule_that_matches_answers_and_groups_are_filled_in(tmp_path) -> None:
    rules = r"""
replies:
  - {match: '(\d+) \+ (\d+)', reply: 'sum of {1} and {2}: {0} {x} {}'}
  - {match: '^cap', reply: 'Paris'}
  - {match: 'cap', reply: 'never'}
  - {reply: 'no idea'}
"""
    rows = [{"prompt": text} for text in ("what is 3 + 4?", "capital of France", "a riddle")]
    replies = {r.task["prompt"]: r.reply for r in await collected(rows, **options(tmp_path, rules))}
    assert replies == {
        "what is 3 + 4?": "sum of 3 and 4: 3 + 4 {x} {}",
        "capital of France": "Paris",
        "a riddle": "no idea",
    }


async def test_only_the_last_user_message_is_matched(tmp_path) -> None:
    messages = [
        {"role": "system", "content": "needle"},
        {"role": "user", "content": "needle"},
        {"role": "assistant", "content": "needle"},
        {"role": "user", "content": "hay"},
        {"role": "assistant", "content": "needle"},
    ]
    rules = "replies: [{match: needle, reply: found}, {reply: not found}]"
    assert (await single([{"messages": messages}], **options(tmp_path, rules))).reply == "not found"


async def test_a_list_gives_one_reply_a_turn_and_its_last_one_from_then_on(tmp_path) -> None:
    rollout = await single(
        [{"prompt": "go"}], env=Thrice, **options(tmp_path, "replies: [{reply: [one, two]}]")
    )
    assert [m.content for m in rollout.messages if m.origin == "policy"] == ["one", "two", "two"]


async def test_finish_length_truncates(tmp_path) -> None:
    rules = "replies: [{reply: 'half a', finish: length}]"
    rollout = await single([{"prompt": "go"}], **options(tmp_path, rules))
    assert (rollout.status, rollout.stop, rollout.turns[0].finish) == ("truncated", "length", "length")


async def test_latency_is_waited_for(tmp_path) -> None:
    rollout = await single([{"prompt": "go"}], **options(tmp_path, "replies: [{reply: x, latency_s: 0.2}]"))
    assert rollout.turns[0].seconds >= 0.2
    assert rollout.timing.policy >= 0.2


async def test_no_matching_rule_is_the_policys_failure(tmp_path) -> None:
    rollout = await single([{"prompt": "other"}], **options(tmp_path, "replies: [{match: x, reply: y}]"))
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner, rollout.error.kind) == ("failed", "policy", "no_rule")
    assert "'other'" in rollout.error.message


# -- faults


@pytest.mark.parametrize("kind", ["http_503", "http_429", "transport"])
async def test_the_first_tries_fail_and_the_call_goes_on(tmp_path, kind) -> None:
    rules = f"replies: [{{reply: ok, fault: {{kind: {kind}, first: 2}}}}]"
    rollout = await single([{"prompt": "go"}], **options(tmp_path, rules))
    assert (rollout.status, rollout.reply, rollout.turns[0].retries) == ("completed", "ok", 2)


async def test_every_turn_has_its_own_first_tries(tmp_path) -> None:
    rules = "replies: [{reply: ok, fault: {kind: transport, first: 1}}]"
    rollout = await single([{"prompt": "go"}], env=Thrice, **options(tmp_path, rules))
    assert [turn.retries for turn in rollout.turns] == [1, 1, 1]


async def test_a_fault_that_outlasts_the_retries_fails_the_attempt(tmp_path) -> None:
    rules = "replies: [{reply: ok, fault: {kind: http_500, first: 3}}]"
    rollout = await single([{"prompt": "go"}], **options(tmp_path, rules, call_retries=2))
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner, rollout.error.kind) == ("failed", "infra", "http_500")


async def test_a_client_error_is_not_tried_again(tmp_path) -> None:
    rules = "replies: [{reply: ok, fault: {kind: http_400, first: 1}}]"
    rollout = await single([{"prompt": "go"}], **options(tmp_path, rules))
    assert rollout.error is not None
    assert (rollout.error.owner, rollout.error.kind) == ("policy", "http_400")


async def test_a_hanging_call_ends_with_the_call_timeout(tmp_path) -> None:
    rules = "replies: [{reply: ok, fault: {kind: hang, first: 1}}]"
    rollout = await single([{"prompt": "go"}], **options(tmp_path, rules, call_timeout=0.1))
    assert rollout.error is not None
    assert (rollout.error.owner, rollout.error.kind) == ("infra", "call_timeout")


async def test_a_rate_of_the_attempts_fails_and_it_is_the_same_ones_every_time(tmp_path) -> None:
    rules = "replies: [{reply: ok, fault: {kind: http_500, rate: 0.5}}]"
    rows = [{"prompt": f"q{n}"} for n in range(60)]

    async def outcomes(name: str) -> dict[str, str]:
        more = {"out": str(tmp_path / name), "call_retries": 0, "retries": 0}
        return {r.id: r.status for r in await collected(rows, **{**options(tmp_path, rules), **more})}

    first = await outcomes("a")
    assert await outcomes("b") == first
    assert 10 < sum(status == "failed" for status in first.values()) < 50


# -- functions


def shout(request: Request) -> str:
    return request.messages[-1].text.upper()


async def whisper(request: Request) -> Completion:
    await asyncio.sleep(0)
    call = Call(id="c1", name="listen", arguments="{}")
    return Completion(content=request.messages[-1].text.lower(), tool_calls=(call,), finish="tool_calls")


def number(request: Request) -> int:
    return 7


def badly_made(request: Request) -> Completion:
    return Completion(content=7)  # type: ignore[arg-type]


def crash(request: Request) -> str:
    raise KeyError("lost")


async def by_function(tmp_path: Path, name: str) -> Any:
    return await single([{"prompt": "Hello"}], model=f"scripted:{__name__}:{name}", out=str(tmp_path / "run"))


async def test_a_function_answers(tmp_path) -> None:
    rollout = await by_function(tmp_path, "shout")
    assert (rollout.reply, rollout.policy.model) == ("HELLO", f"scripted:{__name__}:shout")


async def test_an_async_function_answers_with_a_whole_completion(tmp_path) -> None:
    rollout = await by_function(tmp_path, "whisper")
    said = rollout.messages[1]
    assert (said.content, said.tool_calls[0].name, rollout.turns[0].finish) == (
        "hello",
        "listen",
        "tool_calls",
    )


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("number", "bad_completion", "expected a string or Completion"),
        ("badly_made", "bad_completion", "'content' is 7"),
        ("crash", "KeyError", "lost"),
    ],
)
async def test_a_function_that_misbehaves_is_the_policys_failure(tmp_path, name, kind, says) -> None:
    rollout = await by_function(tmp_path, name)
    assert (rollout.status, rollout.reward, len(rollout.turns)) == ("failed", None, 1)
    assert (rollout.error.owner, rollout.error.kind) == ("policy", kind)
    assert says in rollout.error.message


# -- bad scripts

BAD_SCRIPTS = {
    "not yaml": "replies: [",
    "not a mapping": "- reply: x",
    "no replies": "{}",
    "unknown key": "replies: [{reply: x, macth: y}]",
    "reply of a wrong type": "replies: [{reply: 7}]",
    "an empty list of replies": "replies: [{reply: []}]",
    "bad pattern": "replies: [{reply: x, match: '('}]",
    "a group that is not there": "replies: [{reply: '{2}', match: '(x)'}]",
    "negative latency": "replies: [{reply: x, latency_s: -1}]",
    "unknown fault": "replies: [{reply: x, fault: {kind: gremlin, first: 1}}]",
    "impossible rate": "replies: [{reply: x, fault: {kind: transport, rate: 2}}]",
}


@pytest.mark.parametrize("text", BAD_SCRIPTS.values(), ids=BAD_SCRIPTS)
async def test_a_bad_script_is_refused_at_the_start_by_its_name(tmp_path, text) -> None:
    with pytest.raises(UsageError, match=r"script\.yaml"):
        await collected([{"prompt": "go"}], **options(tmp_path, text))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "model",
    ["scripted:no-such-file.yaml", "scripted:no_such_module:f", f"scripted:{__name__}:no_such_function"],
)
async def test_a_script_that_is_not_there_is_refused_at_the_start(tmp_path, model) -> None:
    with pytest.raises(UsageError, match=r"no-such-file|no_such"):
        await collected([{"prompt": "go"}], model=model, out=str(tmp_path / "run"))


@pytest.mark.parametrize(
    "option", [{"temperature": 0.5}, {"seeds": "id"}, {"base_url": "http://127.0.0.1:9/v1"}]
)
async def test_what_a_script_would_ignore_is_refused(tmp_path, option) -> None:
    with pytest.raises(UsageError, match="ignore"):
        await collected([{"prompt": "go"}], **options(tmp_path, "replies: [{reply: x}]", **option))
