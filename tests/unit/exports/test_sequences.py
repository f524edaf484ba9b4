"""Training sequences: every sampled token is trained exactly once, none is altered, and the rows are the fewest."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.exact_token_policy import END, ExactPolicy, make_turn, tokens
from tests.support.run_builders import make_rollout
from tests.support.scripted_envs import played, world
from windrow import Completion, Request, Rollout, tool
from windrow.agents import Agent, Session
from windrow.engine.token_deltas import TokenDeltas
from windrow.errors import UsageError
from windrow.exports.tokens.linking import Merging
from windrow.exports.tokens.sequences import TrainingSequence, training_sequences
from windrow.records import Call, Turn
from windrow.util.token_contexts import BrokenContext, context_ids

pytestmark = pytest.mark.slow

Calls = list[tuple[list[int], list[int]]]  # prompt and output of each


def rollout_of(turns: list[Turn], **changes: Any) -> Rollout:
    return make_rollout(turns=tuple(turns), capture="tokens", **changes)


def recorded(calls: Calls, **changes: Any) -> Rollout:
    """The calls as the recorder would store them."""
    token_deltas = TokenDeltas()
    turns: list[Turn] = []
    for prompt, output in calls:
        logprobs = [-(len(turns) + 1) - place / 8 for place in range(len(output))]
        whole = tokens(prompt, output, logprobs=logprobs)
        turns.append(make_turn(token_deltas.stored(whole.prompt_new, whole, len(turns))))
    return rollout_of(turns, **changes)


def as_stored_whole(calls: Calls) -> Rollout:
    return rollout_of([make_turn(tokens(prompt, output)) for prompt, output in calls])


def trained(sequences: list[TrainingSequence]) -> Counter[tuple[int, int]]:
    """How often each sampled token is trained, by turn and place in its output."""
    return Counter(
        (span.turn, place)
        for sequence in sequences
        for span in sequence.spans
        for place in range(span.stop - span.start)
        if sequence.loss_mask[span.start + place]
    )


def every_sampled_token(calls: Calls) -> Counter[tuple[int, int]]:
    return Counter((turn, place) for turn, (_, output) in enumerate(calls) for place in range(len(output)))


# -- properties

ids = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@st.composite
def trees(draw: st.DrawFn, alike: bool = True) -> Calls:
    """Turns that go on from one another, ask the same again, or begin anew, in any order of arrival.

    Unless `alike`, no two say the same.
    """
    calls: Calls = []
    for number in range(draw(st.integers(1, 12))):
        before = draw(st.sampled_from([None, *calls]))
        start = [] if before is None else before[0] + before[1]
        if before is not None and draw(st.booleans()):
            start = start[: draw(st.integers(0, len(start)))]
        calls.append((start + draw(ids), draw(ids) if alike else [100 + number, *draw(ids)]))
    return draw(st.permutations(calls))


@given(trees())
def test_every_sampled_token_is_trained_exactly_once_and_none_is_altered(calls: Calls) -> None:
    rollout = recorded(calls)
    sequences = training_sequences(rollout)
    assert trained(sequences) == every_sampled_token(calls)
    for sequence in sequences:
        assert len(sequence.input_ids) == len(sequence.loss_mask) == len(sequence.logprobs)
        within = np.zeros(len(sequence), bool)
        for span in sequence.spans:
            prompt, output = calls[span.turn]
            assert sequence.input_ids[: span.start].tolist() == prompt
            assert sequence.input_ids[span.start : span.stop].tolist() == output
            if span.trained:
                within[span.start : span.stop] = True
                want = [-(span.turn + 1) - place / 8 for place in range(len(output))]
                assert sequence.logprobs[span.start : span.stop].tolist() == want
        assert (sequence.loss_mask == within).all()
        assert not sequence.logprobs[~within].any()


@given(trees(alike=False))
def test_the_sequences_are_the_leaves_of_the_prefix_tree(calls: Calls) -> None:
    leaves = [
        prompt + output
        for prompt, output in calls
        if not any(
            other[: len(prompt + output)] == prompt + output for other, _ in calls
        )  # nothing goes on from it
    ]
    sequences = training_sequences(recorded(calls))
    assert sorted(sequence.input_ids.tolist() for sequence in sequences) == sorted(leaves)


def test_equal_replies_to_one_prompt_are_two_samples_and_each_is_gone_on_from_once() -> None:
    calls: Calls = [([1], [2]), ([1], [2]), ([1, 2, 3], [4]), ([1, 2, 5], [6])]
    sequences = training_sequences(recorded(calls))
    assert [[span.turn for span in sequence.spans] for sequence in sequences] == [[1, 2], [0, 3]]
    assert all(span.trained for sequence in sequences for span in sequence.spans)


@given(trees())
def test_a_span_that_sequences_share_is_trained_in_the_first_of_them(calls: Calls) -> None:
    seen: set[int] = set()
    for sequence in training_sequences(recorded(calls)):
        assert [span.trained for span in sequence.spans] == [span.turn not in seen for span in sequence.spans]
        assert sequence.spans[-1].trained
        seen |= {span.turn for span in sequence.spans}


@given(trees())
def test_how_turns_are_stored_makes_no_difference(calls: Calls) -> None:
    stored = training_sequences(recorded(calls))
    whole = training_sequences(as_stored_whole(calls))
    assert [s.input_ids.tolist() for s in stored] == [s.input_ids.tolist() for s in whole]
    assert [s.spans for s in stored] == [s.spans for s in whole]


# -- examples


def test_a_fork_keeps_what_was_sampled_and_trains_the_shared_reply_once() -> None:
    calls: Calls = [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6]), ([1, 2, 3, 4, 9], [7, 8])]
    first, second = training_sequences(recorded(calls))
    assert first.input_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert first.loss_mask.tolist() == [False, False, True, True, False, True]
    assert second.input_ids.tolist() == [1, 2, 3, 4, 9, 7, 8]
    assert second.loss_mask.tolist() == [False, False, False, False, False, True, True]
    assert (second.prompt_length, second.completion_ids.tolist()) == (5, [7, 8])
    assert (first.segment, second.segment, first.facts.segments) == (0, 1, 2)


def test_only_the_agents_turns_are_trained_unless_others_are_asked_for() -> None:
    turns = [
        make_turn(tokens([1], [2])),
        make_turn(tokens([7], [8]), role="auxiliary"),
        make_turn(tokens([9], [5]), role="discarded"),
        make_turn(tokens([9], [], prefix=2, continues=1), role="judge"),
        make_turn(tokens([3], [4], prefix=2, continues=0)),
    ]
    [sequence] = training_sequences(rollout_of(turns))
    assert sequence.input_ids.tolist() == [1, 2, 3, 4]
    both = training_sequences(rollout_of(turns), Merging(roles=frozenset({"agent", "auxiliary"})))
    assert [s.input_ids.tolist() for s in both] == [[7, 8], [1, 2, 3, 4]]


def test_versions_are_ranges_of_trained_ids() -> None:
    turns = [
        make_turn(tokens([1], [2, 3]), versions=((0, "a"), (1, "b"))),
        make_turn(tokens([4], [5], prefix=3, continues=0), versions=((0, "b"),)),
    ]
    [sequence] = training_sequences(rollout_of(turns))
    assert sequence.versions == ((1, 2, "a"), (2, 3, "b"), (4, 5, "b"))


EOS, EOT, NEWLINE = 90, 91, 92
SPLICED = Merging(tolerant=True, end_of_turn=frozenset({EOS, EOT, NEWLINE}))


@pytest.mark.parametrize(
    ("output", "prompt", "merged"),
    [
        ([5, EOS], [1, 5, EOT, NEWLINE, 7], [1, 5, EOS, NEWLINE, 7]),
        ([5, EOT, NEWLINE], [1, 5, EOT, 7], [1, 5, EOT, NEWLINE, 7]),
        ([5, EOS], [1, 5, 7], [1, 5, EOS, 7]),
    ],
    ids=["another end", "a newline more", "no end at all"],
)
def test_a_tolerant_merge_keeps_the_sampled_end_of_a_reply(
    output: list[int], prompt: list[int], merged: list[int]
) -> None:
    rollout = recorded([([1], output), (prompt, [8])])
    assert len(training_sequences(rollout, Merging(end_of_turn=SPLICED.end_of_turn))) == 2
    [sequence] = training_sequences(rollout, SPLICED)
    assert sequence.input_ids.tolist() == [*merged, 8]
    assert sequence.input_ids[sequence.loss_mask].tolist() == [*output, 8]


@pytest.mark.parametrize(
    ("output", "prompt"),
    [
        ([5, 6], [1, 5, EOT, 7]),  # a word is lost
        ([EOS], [1]),  # the same prompt asked again
        ([EOS], [1, EOT, 7]),  # nothing of the reply is there
        ([5, EOS], [2, 5, EOT, 7]),  # another conversation
        ([5, EOS, EOS, EOS, EOS, EOS], [1, 5, EOT, 7]),  # too long for an end
    ],
)
def test_a_tolerant_merge_is_tolerant_of_nothing_else(output: list[int], prompt: list[int]) -> None:
    calls = [([1], output), (prompt, [8])]
    sequences = training_sequences(recorded(calls), SPLICED)
    assert len(sequences) == 2
    assert trained(sequences) == every_sampled_token(calls)


ends = st.lists(st.sampled_from([1, 2, EOS, EOT, NEWLINE]), min_size=1, max_size=4)


@given(st.lists(st.tuples(ends, ends), min_size=1, max_size=8))
def test_a_tolerant_merge_trains_every_sampled_token_once_too(calls: Calls) -> None:
    sequences = training_sequences(recorded(calls), SPLICED)
    assert trained(sequences) == every_sampled_token(calls)
    for sequence in sequences:
        for span in sequence.spans:
            assert sequence.input_ids[span.start : span.stop].tolist() == calls[span.turn][1]


class NeverRunsTheSecondCalls(Agent):
    async def run(self, session: Session) -> None:
        first = await session.complete()
        assert first is not None
        await session.step(first)
        while await session.complete() is not None:
            pass


def asking(request: Request) -> Completion:
    """One call in the first turn, two in the second."""
    calls = (Call(id=f"{request.turn}-{n}", name="look", arguments="{}") for n in range(request.turn + 1))
    return Completion(content="look", tool_calls=tuple(calls))


def look() -> str:
    """Look."""
    return "nothing"


@pytest.mark.parametrize(
    ("options", "stop"),
    [
        ({"max_turns": 2, "agent": NeverRunsTheSecondCalls}, "max_turns"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
    ],
)
async def test_truncation_with_an_unanswered_call_reaches_the_sequence(
    tmp_path: Path, options: dict[str, Any], stop: str
) -> None:
    env = world([], turns=9, tools=[tool(look)])
    rollout = await played(env, tmp_path / "run", policy=ExactPolicy(asking), capture="tokens", **options)
    assert (rollout.status, rollout.stop) == ("truncated", stop)
    [sequence] = training_sequences(rollout)
    assert (sequence.facts.truncated, sequence.facts.stop) == (True, stop)
    assert sequence.unanswered_tool_calls == 2 == rollout.metrics["unanswered_tool_calls"]
    assert [span.turn for span in sequence.spans] == [0, 1]


async def test_the_sequence_of_a_real_episode_is_what_the_model_saw(tmp_path: Path) -> None:
    policy = ExactPolicy(lambda request: f"reply {request.turn}")
    rollout = await played(world([], turns=3), tmp_path / "run", policy=policy, capture="tokens")
    [sequence] = training_sequences(rollout)
    assert sequence.input_ids.tolist() == policy.prompts[-1] + policy.outputs[-1]
    assert sequence.input_ids.tobytes() == context_ids(rollout.turns, 2)
    assert sequence.input_ids[sequence.loss_mask].tolist() == [*chain(*policy.outputs)]
    assert (sequence.rollout_id, sequence.facts.group) == (rollout.id, rollout.group)


def test_a_rollout_without_ids_has_no_sequences() -> None:
    with pytest.raises(UsageError, match=r"captured as 'text'.*--capture tokens"):
        training_sequences(make_rollout())


@pytest.mark.parametrize(
    "turn",
    [
        make_turn(tokens([1], [2], prefix=3, continues=0)),
        make_turn(tokens([1], [2], prefix=1)),
        make_turn(tokens([1], [2], logprobs=[])),
        make_turn(tokens([1], [2], logprobs=[-1.0, -1.0])),
    ],
    ids=["beyond what it continues", "continues nothing", "no logprob", "a logprob too many"],
)
def test_tokens_that_do_not_fit_together_are_refused(turn: Turn) -> None:
    with pytest.raises(BrokenContext):
        training_sequences(rollout_of([make_turn(tokens([1], [END])), turn]))
