"""Prompts that repeat the last one: the ids that are kept, or the error, are those of decoding each reply whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutations import fuzz
from windrow.policies.base import Completion, Request, Route
from windrow.policies.dialects import DIALECTS
from windrow.policies.dialects.token_in_token_out import TokenDialect
from windrow.policies.prompt_ids import WORTH_KEEPING, PromptReader, pack_ids
from windrow.policies.wire import UNDECODABLE, CheckedReply, TokenId, check_reply
from windrow.records import Message

ids = st.integers(0, 2**31 - 1).map(str)
spoilt = st.sampled_from(
    ["-1", "-0", "2147483648", "1.0", "1e2", "1E0", "01", "", " ", '"1"', '"\\ud83d"', "null", "true", "[1]", "{}", "1 2", "[" * 99]
)  # fmt: skip
# Ids that are as many as are worth keeping, or one fewer: what follows and how it is spelled is different each time.
base = st.tuples(st.integers(WORTH_KEEPING - 1, WORTH_KEEPING), st.integers(0, 2**31 - 1)).map(
    lambda given: [str(given[1])] * given[0]
)
prompts = st.tuples(
    st.integers(0, WORTH_KEEPING),  # how many of the last prompt's ids are left out
    st.sampled_from(["", "", "", "0", ".5", "e1", " "]),  # what is written on to the last of them
    st.lists(st.one_of(ids, ids, ids, spoilt), max_size=4),
    st.sampled_from([",", ",", ",", ", ", " ,"]),
    st.sampled_from(["]", "]", "]", " ]"]),
)


def reply(dialect: str, array: str, counted: int | None, elsewhere: str) -> bytes:
    """A reply with the prompt's ids where the dialect has them, and others where it does not look."""
    top, choice = (array, elsewhere) if dialect == "vllm" else (elsewhere, array)
    usage = "null" if counted is None else f'{{"prompt_tokens":{counted},"completion_tokens":1}}'
    return (
        f'{{"prompt_token_ids":{top},"usage":{usage},"choices":[{{"prompt_token_ids":{choice},"message":{{"content":"x"}},'
        f'"token_ids":[7],"logprobs":{{"content":[{{"logprob":-0.5}}]}}}}]}}'
    ).encode()


def read(dialect: str, answer: bytes, route: Route) -> Completion | str:
    asked = Message(role="user", content="hi", origin="task")
    request = Request(
        messages=(asked,), tools=(), sampling={}, id="r", attempt=1, turn=0, capture="tokens", route=route
    )
    try:
        return DIALECTS[dialect].read(answer, request)
    except UNDECODABLE as problem:
        return str(problem)


def whole(answer: bytes) -> CheckedReply | str:
    try:
        return check_reply(answer)
    except UNDECODABLE as problem:
        return str(problem)


def check_compatible(dialect: str, answer: bytes, route: Route) -> None:
    found, expected = read(dialect, answer, route), whole(answer)
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
        return
    told: Any = (expected if dialect == "vllm" else expected.choices[0]).prompt_token_ids
    counts = expected.usage is None or expected.usage.prompt_tokens == len(told or ())
    assert found.tokens is not None
    if told and counts:
        assert (found.capture, found.tokens.prompt_new) == ("tokens", pack_ids(told))
    else:
        assert (found.capture, found.tokens.prompt_new) == ("logprobs", b"")


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
@fuzz(60)
@given(
    data=st.data(),
    last=base,
    turns=st.lists(prompts, min_size=1, max_size=5),
    elsewhere=st.sampled_from(["null"] * 9 + ["[1]", '["x"]']),
)
def test_a_prompt_that_repeats_the_last_one_is_read_as_if_it_were_the_first(
    dialect: str, data: st.DataObject, last: list[str], turns: list[Any], elsewhere: str
) -> None:
    route = Route()
    for told in arrays(last, turns):
        counted = data.draw(st.sampled_from([None, told.count(",") + 1, 1]))
        check_compatible(dialect, reply(dialect, told, counted, elsewhere), route)


def arrays(last: list[str], turns: list[Any]) -> Iterator[str]:
    """The array of each turn, which goes on from the last one's, or from less of it."""
    for dropped, more, new, separator, closing in turns:
        kept = last[: len(last) - dropped] if dropped < 9 else list(last)
        if kept:
            kept[-1] += more
        last = [*kept, *new]
        yield "[" + separator.join(last) + closing


class Ids(msgspec.Struct):
    prompt_token_ids: list[TokenId] | None = None


class Choices(msgspec.Struct):
    choices: list[Ids]


def completion(dialect: str, array: str) -> bytes:
    if dialect == "sglang-generate":
        meta = '"meta_info":{"prompt_tokens":1,"completion_tokens":1}'
        return f'{{"text":"x","output_ids":[7],"prompt_token_ids":{array},{meta}}}'.encode()
    usage = '"usage":{"prompt_tokens":1,"completion_tokens":1}'
    return f'{{"choices":[{{"text":"x","token_ids":[7],"prompt_token_ids":{array}}}],{usage}}}'.encode()


def expected_prompt(dialect: str, answer: bytes) -> bytes | str:
    try:
        if dialect == "sglang-generate":
            told = msgspec.json.decode(answer, type=Ids)
        else:
            told = msgspec.json.decode(answer, type=Choices).choices[0]
    except UNDECODABLE as problem:
        return str(problem)
    return pack_ids(told.prompt_token_ids or ())


def found_prompt(dialect: TokenDialect, answer: bytes, prompts: PromptReader) -> bytes | str | None:
    try:
        return dialect.sampled(answer, prompts).prompt
    except UNDECODABLE as problem:
        return str(problem)


@pytest.mark.parametrize("name", ["vllm-completions", "sglang-generate"])
@fuzz(60)
@given(last=base, turns=st.lists(prompts, min_size=1, max_size=5))
def test_a_prompt_that_is_told_back_is_read_as_if_it_were_the_first(
    name: str, last: list[str], turns: list[Any]
) -> None:
    dialect, reader = DIALECTS[name], PromptReader()
    assert isinstance(dialect, TokenDialect)
    for told in arrays(last, turns):
        answer = completion(name, told)
        assert found_prompt(dialect, answer, reader) == expected_prompt(name, answer)
