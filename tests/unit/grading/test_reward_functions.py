"""TRL's reward functions, unmodified, as scorers: called as its trainers call them, a group at a time."""

from __future__ import annotations

import asyncio
import itertools
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.exact_token_policy import END, ExactPolicy, ids_of
from tests.support.judged_runs import by_sample, grade_group, group_of, member
from tests.support.scripted_envs import world
from windrow.grading.user_functions import FunctionScorer, RewardFunctionScorer, scorer_of
from windrow.records import Call, Message

# -- the shapes that TRL's documentation shows


def accuracy(completions, answer, **kwargs):
    """Conversational: each completion is a list of messages."""
    contents = [completion[-1]["content"] for completion in completions]
    return [1.0 if content == wanted else 0.0 for content, wanted in zip(contents, answer, strict=True)]


def format_reward(completions, **kwargs):
    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    matches = [re.match(pattern, completion[0]["content"]) for completion in completions]
    return [1.0 if match else 0.0 for match in matches]


def length(completions, **kwargs):
    """Standard: each completion is a text."""
    return [float(len(completion)) for completion in completions]


def by_tokens(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


async def slow_accuracy(prompts, completions, answer, **kwargs):
    await asyncio.sleep(0)
    return [float(text == wanted) for text, wanted in zip(completions, answer, strict=True)]


def only_math(prompts, completions, task_type, **kwargs):
    return [1.0 if kind == "math" else None for kind in task_type]


class Penalty:
    """As TRL's own factories give them: a callable with a name and no source of its own."""

    __name__ = "penalty"

    def __init__(self, most: int) -> None:
        self._most = most

    def __call__(self, completions, **kwargs):
        return [-1.0 if len(text) > self._most else 0.0 for text in completions]


penalty = Penalty(3)


def scorer(name: str) -> str:
    return f"{__name__}:{name}"


async def rewards(
    tmp_path: Path, row: dict[str, Any], name: str, *replies: str, **options: Any
) -> dict[str, Any]:
    """The reward of each reply, by what it says; one sample a reply."""
    left = iter(replies)
    options = {"policy": answering(lambda request: next(left)), **options}
    out = str(tmp_path / "run")
    await collected([row], scorers=[scorer(name)], samples=len(replies), out=out, retries=0, **options)
    found = list(windrow.load(tmp_path / "run"))
    assert all(rollout.grade in ("graded", "none") for rollout in found), found[0].error
    return {rollout.reply: rollout.reward for rollout in found}


CHAT = {"messages": [{"role": "user", "content": "2 + 2?"}], "answer": "4"}
PLAIN = {"prompt": "2 + 2?", "answer": "4", "task_type": "math"}


async def test_a_row_with_messages_is_given_as_conversations(tmp_path: Path) -> None:
    assert await rewards(tmp_path, CHAT, "accuracy", "4", "5", "four") == {"4": 1.0, "5": 0.0, "four": 0.0}


async def test_what_a_policy_thinks_in_its_text_is_there_for_a_format_reward(tmp_path: Path) -> None:
    good = "<think>2 + 2</think><answer>4</answer>"
    assert await rewards(tmp_path, CHAT, "format_reward", good, "4") == {good: 1.0, "4": 0.0}


async def test_a_row_with_a_prompt_is_given_as_texts(tmp_path: Path) -> None:
    assert await rewards(tmp_path, PLAIN, "length", "4", "four") == {"4": 1.0, "four": 4.0}


async def test_an_async_function_and_a_callable_object_work_as_plain_ones_do(tmp_path: Path) -> None:
    assert await rewards(tmp_path / "a", PLAIN, "slow_accuracy", "4", "5") == {"4": 1.0, "5": 0.0}
    assert await rewards(tmp_path / "b", PLAIN, "penalty", "4", "four") == {"4": 0.0, "four": -1.0}


async def test_none_says_that_it_does_not_apply(tmp_path: Path) -> None:
    other = {**PLAIN, "task_type": "code"}
    assert await rewards(tmp_path / "a", PLAIN, "only_math", "4", "5") == {"4": 1.0, "5": 1.0}
    assert await rewards(tmp_path / "b", other, "only_math", "4", "5") == {"4": None, "5": None}


# -- what it is called with

SEEN: list[dict[str, Any]] = []


def watching(prompts, completions, completion_ids, **kwargs):
    SEEN.append({"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **kwargs})
    return [0.0] * len(prompts)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    SEEN.clear()


async def test_prompts_completions_and_columns_are_lists_with_an_entry_a_member() -> None:
    row = {"prompt": "2 + 2?", "answer": "4", "meta": {"level": 1}, "id": "q"}
    task = windrow.Task(key="q", digest="d", source="s", split=None, index=0, tags=(), data=row)
    found = group_of(*(member(n, f"reply {n}", task=task) for n in range(3)))
    await grade_group(found, scorer_of(watching, name="watching"))
    [seen] = SEEN
    assert seen["prompts"] == ["2 + 2?"] * 3
    assert seen["completions"] == ["reply 0", "reply 1", "reply 2"]
    assert seen["completion_ids"] == [None, None, None]
    assert (seen["answer"], seen["id"]) == (["4"] * 3, ["q"] * 3)
    assert seen["meta"] == [{"level": 1}] * 3
    seen["meta"][0]["level"] = 2  # what it does to one is done to that one alone
    assert (seen["meta"][1], row["meta"]) == ({"level": 1}, {"level": 1})
    assert (seen["trainer_state"].global_step, callable(seen["log_extra"])) == (0, True)
    assert not {"prompt", "messages"} & seen.keys()


async def test_several_turns_or_tools_are_given_as_conversations_from_the_first_reply_on() -> None:
    call = Call(id="c1", name="add", arguments='{"a": 1}')
    said = (
        Message(role="system", content="Be exact.", origin="task"),
        Message(role="user", content="1 + 1?", origin="task"),
        Message(role="assistant", content=None, origin="policy", tool_calls=(call,), reasoning="add them"),
        Message(role="tool", content="2", origin="tool", tool_call_id="c1", name="add"),
        Message(role="assistant", content="2", origin="policy"),
    )
    found = group_of(*(msgspec.structs.replace(member(n, "x"), messages=said) for n in range(2)))
    await grade_group(found, scorer_of(watching, name="watching"))
    [seen] = SEEN
    assert seen["prompts"][0] == [
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": "1 + 1?"},
    ]
    called = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert seen["completions"][1] == [
        {"role": "assistant", "content": "", "tool_calls": [called], "reasoning_content": "add them"},
        {"role": "tool", "content": "2", "tool_call_id": "c1", "name": "add"},
        {"role": "assistant", "content": "2"},
    ]


async def test_completion_ids_are_those_that_were_sampled_and_none_where_they_were_not_captured(
    tmp_path: Path,
) -> None:
    replies = {0: "ab", 1: "c"}
    count = itertools.count()
    policy = ExactPolicy(lambda request: replies[next(count) % 2])
    options: dict[str, Any] = {"policy": policy, "capture": "tokens", "concurrency": 1}
    await collected(
        [{"prompt": "go"}], env=world([], turns=2), scorers=[watching], out=str(tmp_path / "run"), **options
    )
    [seen] = SEEN
    [rollout] = windrow.load(tmp_path / "run")
    between = [1, *ids_of("user:step 1"), 2, 1, *ids_of("assistant:")]
    assert seen["completion_ids"] == [[*ids_of("ab"), END, *between, *ids_of("c"), END]]
    assert rollout.grade == "graded"
    assert await rewards(
        tmp_path / "t", PLAIN, "by_tokens", "x", policy=ExactPolicy(lambda r: "4567"), capture="tokens"
    ) == {"4567": 5.0}


async def test_a_function_without_keywords_is_given_only_what_it_takes() -> None:
    def narrow(completions, answer=None, level=7):
        SEEN.append({"answer": answer, "level": level})
        return [1.0] * len(completions)

    found = group_of(member(0, "x"))
    grading = await grade_group(found, scorer_of(narrow, name="narrow", settings={"level": 9}))
    assert by_sample(found, grading, "narrow") == {0: 1.0}
    assert SEEN == [{"answer": None, "level": 9}]


async def test_what_it_logs_is_evidence_and_metrics() -> None:
    def logging(completions, log_extra, log_metric, **kwargs):
        log_extra("length", [len(text) for text in completions])
        log_extra("odd", object())
        log_metric("mean_length", 2.5)
        return [1.0, None]

    task = windrow.Task(key="q", digest="d", source="s", split=None, index=0, tags=(), data={"prompt": "p"})
    found = group_of(member(0, "abc", task=task), member(1, "de", task=task))
    grading = await grade_group(found, scorer_of(logging, name="logging"))
    evidence = grading.scores[0]["logging"].evidence
    assert (evidence["length"], evidence["odd"].startswith("<object")) == (3, True)
    assert grading.metrics[0] == {"logging.mean_length": 2.5}
    assert grading.scores[1] == {}


async def test_rewards_land_on_their_own_rollouts_in_whatever_order_they_come_and_with_one_missing() -> None:
    def last_number(completions, **kwargs):
        return [float(completion[-1]["content"][-1]) for completion in completions]

    members = [member(n, f"I say {n}", f"first 9{n}", "Go on.") for n in (0, 1, 3)]
    for order in itertools.permutations(members):
        found = group_of(*order)
        grading = await grade_group(found, scorer_of(last_number, name="last"))
        assert by_sample(found, grading, "last") == {0: 0.0, 1: 1.0, 3: 3.0}


# -- what is no reward


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ([1.0], "returned 1 rewards for 2 completions"),
        ([1.0, 2.0, 3.0], "returned 3 rewards for 2 completions"),
        ([1.0, math.nan], "reward 1 is nan, which is not a finite number"),
        ([math.inf, 0.0], "reward 0 is inf"),
        ([1.0, "good"], "reward 1 is 'good', which is not a number"),
        (1.0, "returned float; expected a list of 2 numbers"),
        (None, "returned NoneType"),
    ],
    ids=str,
)
async def test_a_wrong_length_or_what_is_no_number_fails_the_grading_and_says_so(
    returned: Any, problem: str
) -> None:
    def wrong(completions, **kwargs):
        return returned

    grading = await grade_group(group_of(member(0, "x"), member(1, "y")), scorer_of(wrong, name="wrong"))
    assert grading.error is not None
    assert grading.error.message.startswith("scorer 'wrong': ")
    assert problem in grading.error.message
    assert not any(grading.scores)


async def test_a_column_that_the_row_has_not_is_named() -> None:
    grading = await grade_group(group_of(member(0, "4")), scorer_of(slow_accuracy, name="accuracy"))
    assert grading.error is not None
    assert "takes 'answer', which the row has not (it has: prompt)" in grading.error.message
    assert grading.error.retryable is False


async def test_a_function_that_raises_fails_the_grading_of_its_group_alone(tmp_path: Path) -> None:
    def picky(completions, **kwargs):
        if "bad" in completions:
            raise ValueError("not this one")
        return [1.0 for _ in completions]

    rows = [{"prompt": "bad"}, {"prompt": "good"}]
    await collected(
        rows, scorers=[picky], policy=answering(lambda r: r.messages[0].text), out=str(tmp_path / "run")
    )
    found = {rollout.reply: rollout for rollout in windrow.load(tmp_path / "run")}
    assert (found["good"].reward, found["bad"].grade, found["bad"].reward) == (1.0, "failed", None)


def test_a_reward_function_is_known_by_what_it_takes() -> None:
    assert isinstance(scorer_of(length), RewardFunctionScorer)
    assert isinstance(scorer_of(by_tokens), RewardFunctionScorer)
    assert isinstance(scorer_of(penalty), RewardFunctionScorer)
    assert isinstance(scorer_of(lambda task, reply: 1.0, name="mine"), FunctionScorer)
