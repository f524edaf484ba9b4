"""Each token of a rollout is stored once, and the whole prompt of every turn can be rebuilt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.exact_token_policy import ExactPolicy, make_turn, numbers, tokens
from tests.support.scripted_envs import played, world
from windrow import Completion, Request
from windrow.agents import Agent, Session
from windrow.engine.token_deltas import MOST_BRANCHES, TokenDeltas
from windrow.records import Rollout, Tokens, Turn
from windrow.util.token_contexts import BrokenContext, context_ids, prompt_ids

pytestmark = pytest.mark.slow


def stored_ids(rollout: Rollout) -> int:
    return sum(len(turn.tokens.prompt_new + turn.tokens.output) // 4 for turn in rollout.turns if turn.tokens)


async def test_a_long_conversation_stores_each_token_once(tmp_path: Path) -> None:
    """200 turns, some 30,000 tokens of context at the end."""
    policy = ExactPolicy(lambda request: f"{request.turn:070}")
    rollout = await played(
        world([], turns=200), tmp_path / "run", policy=policy, capture="tokens", max_turns=200
    )
    assert (len(rollout.turns), rollout.capture) == (200, "tokens")
    whole = policy.prompts[-1] + policy.outputs[-1]
    assert stored_ids(rollout) == len(whole)
    assert [numbers(prompt_ids(rollout.turns, n)) for n in range(200)] == policy.prompts
    assert numbers(context_ids(rollout.turns, 199)) == whole


async def test_a_turn_says_which_turn_it_continues_and_how_far(tmp_path: Path) -> None:
    policy = ExactPolicy(lambda request: "yes")
    rollout = await played(world([], turns=2), tmp_path / "run", policy=policy, capture="tokens")
    first, second = (turn.tokens for turn in rollout.turns)
    assert first is not None
    assert second is not None
    assert (first.prefix, first.continues) == (0, None)
    assert (second.prefix, second.continues) == (len(policy.prompts[0] + policy.outputs[0]), 0)


class SubAgents(Agent):
    """Two conversations in turns, then one message of the first again."""

    async def run(self, session: Session) -> None:
        one: list[Any] = [{"role": "user", "content": "a" * 500}]
        two: list[Any] = [{"role": "user", "content": "b" * 500}]
        for _ in range(4):
            for talk in (one, two):
                reply = await session.complete(talk)
                talk += [reply, {"role": "user", "content": "more"}]
        await session.complete([*one[:1], {"role": "user", "content": "summary"}])


async def test_sub_agents_and_compaction_share_what_they_begin_with(tmp_path: Path) -> None:
    policy = ExactPolicy(lambda request: "yes")
    rollout = await played(
        world([], turns=9), tmp_path / "run", policy=policy, agent=SubAgents, capture="tokens"
    )
    assert [numbers(prompt_ids(rollout.turns, n)) for n in range(9)] == policy.prompts
    continued = [turn.tokens.continues for turn in rollout.turns if turn.tokens]
    assert continued == [None, 0, 0, 1, 2, 3, 4, 5, 0]
    assert stored_ids(rollout) < 2 * 500 + 9 * 40


async def test_what_is_captured_below_tokens_is_stored_as_it_came(tmp_path: Path) -> None:
    policy = ExactPolicy(lambda request: "yes")
    rollout = await played(world([], turns=2), tmp_path / "run", policy=policy, capture="logprobs")
    assert [turn.tokens.prefix for turn in rollout.turns if turn.tokens] == [0, 0]


class Claiming(ExactPolicy):
    """Says that it gives tokens, whatever it brings."""

    def __init__(self, brought: Tokens | None) -> None:
        super().__init__(lambda request: "yes")
        self._brought = brought

    async def complete(self, request: Request) -> Completion:
        return Completion(content="yes", tokens=self._brought, capture="tokens")


@pytest.mark.parametrize(
    ("brought", "reached"),
    [
        (None, "text"),
        (msgspec.structs.replace(tokens([1], [2]), logprobs=None), "text"),
        (tokens([1], [2], logprobs=[-1.0, -1.0]), "logprobs"),
        (tokens([1], [], logprobs=[]), "logprobs"),
        (tokens([], [2]), "logprobs"),
        (msgspec.structs.replace(tokens([1], [2]), prompt_new=b"odd"), "logprobs"),
        (tokens([1], [2]), "tokens"),
    ],
)
async def test_a_policy_that_says_more_than_it_brings_is_stamped_by_what_it_brings(
    tmp_path: Path, brought: Tokens | None, reached: str
) -> None:
    rollout = await played(world([]), tmp_path / "run", policy=Claiming(brought), capture="tokens")
    assert (rollout.status, rollout.capture) == ("completed", reached)
    assert rollout.turns[0].tokens == brought


async def test_tokens_that_continue_nothing_are_the_policys_fault(tmp_path: Path) -> None:
    policy = Claiming(tokens([1], [2], prefix=3, continues=7))
    rollout = await played(world([]), tmp_path / "run", policy=policy, capture="tokens")
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner, rollout.error.kind) == ("failed", "policy", "bad_completion")
    assert "continues 7, which is no earlier turn" in rollout.error.message


# Ids that begin with the same byte: what is shared is whole ids, not bytes.
small = st.lists(st.sampled_from([0, 1, 256, 65_536]), max_size=12)


@given(st.lists(st.tuples(small, small), max_size=MOST_BRANCHES + 4))
def test_any_turns_can_be_rebuilt(calls: list[tuple[list[int], list[int]]]) -> None:
    token_deltas = TokenDeltas()
    turns: list[Turn] = []
    for prompt, output in calls:
        whole = tokens(prompt, output)
        turns.append(make_turn(token_deltas.stored(whole.prompt_new, whole, len(turns))))
    assert [numbers(prompt_ids(turns, n)) for n in range(len(turns))] == [prompt for prompt, _ in calls]
    kept = [turn.tokens for turn in turns if turn.tokens]
    assert [numbers(one.output) for one in kept] == [output for _, output in calls]
    for number, one in enumerate(kept[:MOST_BRANCHES]):
        earlier = [numbers(context_ids(turns, n)) for n in range(number)]
        assert one.prefix == max((common(calls[number][0], context) for context in earlier), default=0)


def common(a: list[int], b: list[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize(
    "broken",
    [
        tokens([1], [2], prefix=1),
        tokens([1], [2], prefix=1, continues=1),
        tokens([1], [2], prefix=4, continues=0),
        tokens([1], [2], prefix=1, continues=-1),
    ],
)
def test_a_prompt_that_cannot_be_rebuilt_is_an_error(broken: Tokens) -> None:
    with pytest.raises(BrokenContext):
        prompt_ids([make_turn(tokens([7, 8], [9])), make_turn(broken)], 1)
