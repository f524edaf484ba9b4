"""Drift: where a prompt is not what was sampled, the sequence forks, nothing is lost, and the report says where and why."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, trainers

from tests.support.exact_token_policy import (
    END,
    START,
    ExactPolicy,
    Template,
    chatml,
    ids_of,
    make_turn,
    tokens,
)
from tests.support.run_builders import make_rollout
from tests.support.scripted_envs import played, world
from windrow import Completion, Message, Rollout
from windrow.agents import Agent, Session
from windrow.exports.tokens.drift import drift_of
from windrow.exports.tokens.forks import Fork, forks
from windrow.exports.tokens.linking import STRICT, Merging
from windrow.exports.tokens.sequences import grow, training_sequences
from windrow.records import Call


async def episode(
    run: Path, policy: ExactPolicy, *, turns: int = 3, agent: Any = None, tools: Any = ()
) -> Rollout:
    options = {} if agent is None else {"agent": agent}
    return await played(world([], turns=turns, tools=tools), run, policy=policy, capture="tokens", **options)


def forks_of(rollout: Rollout) -> list[Fork]:
    return forks(rollout, grow(rollout.turns))


def sampled(policy: ExactPolicy) -> list[int]:
    return sorted(chain(*policy.outputs))


def trained(rollout: Rollout, merging: Merging = STRICT) -> list[int]:
    return sorted(chain(*(s.input_ids[s.loss_mask].tolist() for s in training_sequences(rollout, merging))))


# -- a real tokenizer

LINES = [
    "user: how are you today.\nassistant: i am well.\n",
    "user: next step 1.\nassistant: the end.\n",
] * 20


def bpe() -> Tokenizer:
    """Merges whatever follows each other often, also across the end of a reply: `.` and a newline are one token."""
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    trainer = trainers.BpeTrainer(vocab_size=90, special_tokens=["?"], show_progress=False)
    tokenizer.decoder = decoders.Fuse()
    tokenizer.train_from_iterator([line[i:] for line in LINES for i in (0, 7)], trainer)
    return tokenizer


async def test_a_merge_across_the_border_of_a_turn_forks_and_loses_nothing(tmp_path: Path) -> None:
    tokenizer = bpe()

    def template(messages: Sequence[Message]) -> list[int]:
        said = "".join(f"{message.role}: {message.text}\n" for message in messages)
        return list(tokenizer.encode(said + "assistant: ").ids)

    policy = ExactPolicy(
        lambda request: "i am well.", template, sampled=lambda text: list(tokenizer.encode(text).ids)
    )
    rollout = await episode(tmp_path / "run", policy, turns=2)
    held = policy.prompts[0] + policy.outputs[0]
    assert policy.prompts[1][: len(held)] != held  # as text it is the same, as ids it is not
    assert tokenizer.decode(policy.prompts[1]).startswith(tokenizer.decode(held))

    sequences = training_sequences(rollout)
    assert [s.input_ids.tolist() for s in sequences] == [held, policy.prompts[1] + policy.outputs[1]]
    assert trained(rollout) == sampled(policy)
    [fork] = forks_of(rollout)
    assert (fork.turn, fork.after, fork.why) == (1, 0, "seam")
    assert held[: fork.position] == policy.prompts[1][: fork.position]
    assert held[fork.position] != policy.prompts[1][fork.position]

    report = drift_of([rollout])
    assert (report.forks, report.sequences, report.lost) == ({"seam": 1}, 2, 0)
    assert report.sampled == report.trained == sum(map(len, policy.outputs))
    assert report.spared == fork.sampled == len(held) - fork.position
    assert report.repeated == fork.position
    assert report.examples[0].rollout == rollout.id


# -- why


def dated(messages: Sequence[Message]) -> list[int]:
    """Says in its first words how many messages there are."""
    return [*ids_of(f"{len(messages)} messages"), *chatml(messages)]


def other_spaces(messages: Sequence[Message]) -> list[int]:
    """Spaces come as another id, as a tokenizer does that merges them."""
    return [3 if id == ord(" ") else id for id in chatml(messages)]


def no_ends(messages: Sequence[Message]) -> list[int]:
    return [START if id == END else id for id in chatml(messages)]


def shouted(messages: Sequence[Message]) -> list[int]:
    return [ord(chr(id).upper()) for id in chatml(messages)]


LONG = "this is a reply of some length indeed"


@pytest.mark.parametrize(
    ("template", "said", "why"),
    [
        (dated, LONG, "history"),
        (other_spaces, LONG, "retokenised"),
        (no_ends, LONG, "seam"),
        (shouted, LONG.upper()[:3] + LONG, "rewritten"),
        (shouted, Completion(content=LONG, tool_calls=(Call(id="c", name="look", arguments="{}"),)), "calls"),
        (shouted, Completion(content=LONG, reasoning="Hm."), "reasoning"),
    ],
    ids=["history", "retokenised", "seam", "rewritten", "calls", "reasoning"],
)
async def test_the_report_says_why_a_sequence_forks(
    tmp_path: Path, template: Template, said: Any, why: str
) -> None:
    policy = ExactPolicy(lambda request: said, template)
    rollout = await episode(tmp_path / "run", policy, turns=2)
    assert [(fork.turn, fork.after, fork.why) for fork in forks_of(rollout)] == [(1, 0, why)]
    assert trained(rollout) == sampled(policy)


class Window(Agent):
    """Forgets all but the last message."""

    async def run(self, session: Session) -> None:
        for _ in range(3):
            reply = await session.complete(session.messages[-2:])
            assert reply is not None
            await session.step(reply)


async def test_a_window_of_the_agents_own_is_no_fault_of_the_template(tmp_path: Path) -> None:
    policy = ExactPolicy(lambda request: LONG)
    rollout = await episode(tmp_path / "run", policy, turns=9, agent=Window)
    assert [fork.why for fork in forks_of(rollout)] == ["window", "window"]
    assert trained(rollout) == sampled(policy)


class TwoTalks(Agent):
    """Two conversations that do not read each other's replies, then the first prompt again."""

    async def run(self, session: Session) -> None:
        opening = session.messages
        await session.complete(opening)
        await session.complete([{"role": "user", "content": "another"}])
        await session.complete(opening)


async def test_conversations_of_their_own_and_second_tries_are_no_forks(tmp_path: Path) -> None:
    policy = ExactPolicy(lambda request: LONG)
    rollout = await episode(tmp_path / "run", policy, agent=TwoTalks)
    assert len(training_sequences(rollout)) == 3
    assert forks_of(rollout) == []


async def test_what_merges_without_a_fork_is_reported_as_one_sequence(tmp_path: Path) -> None:
    policy = ExactPolicy(lambda request: LONG)
    rollout = await episode(tmp_path / "run", policy, turns=4)
    report = drift_of([rollout, make_rollout("b", capture="text")])
    assert (report.rollouts, report.exact, report.others) == (2, 1, {"text": 1})
    assert (report.turns, report.sequences, report.turns_a_sequence) == (4, 1, 4.0)
    assert (report.forks, report.repeated, report.spared, report.lost) == ({}, 0, 0, 0)
    whole = sum(len(prompt + output) for prompt, output in zip(policy.prompts, policy.outputs, strict=True))
    assert report.context_ratio == whole / len(policy.prompts[-1] + policy.outputs[-1])


def test_what_other_roles_sampled_is_counted_apart_and_a_broken_line_does_not_end_the_report() -> None:
    good = make_rollout(
        turns=(make_turn(tokens([1], [2])), make_turn(tokens([3], [4, 5]), role="auxiliary")),
        capture="tokens",
    )
    broken = make_rollout("b", turns=(make_turn(tokens([1], [2], prefix=7)),), capture="tokens")
    report = drift_of([broken, good])
    assert (report.exact, report.broken, report.other_roles) == (1, 1, {"auxiliary": 2})
    assert (report.sampled, report.trained) == (1, 1)


async def test_a_tolerant_merge_is_counted_where_it_spliced(tmp_path: Path) -> None:
    policy = ExactPolicy(lambda request: LONG, no_ends)
    rollout = await episode(tmp_path / "run", policy, turns=3)
    strict = drift_of([rollout])
    merging = Merging(tolerant=True, end_of_turn=frozenset({START, END}))
    tolerant = drift_of([rollout], merging)
    assert (strict.sequences, strict.forks, strict.spliced) == (3, {"seam": 2}, 0)
    assert (tolerant.sequences, tolerant.forks, tolerant.spliced) == (1, {}, 2)
    assert trained(rollout, merging) == sampled(policy)
