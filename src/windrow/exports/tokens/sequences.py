"""Training sequences: the fewest rows that hold every sampled token of a rollout, each trained exactly once.

Sampled ids are never altered. A reply that several sequences share is trained in the first of them; in the others it is
context. Turns of other roles than those that are trained (`Merging.roles`) are context only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from windrow.errors import UsageError
from windrow.exports.tokens.arrays import Floats, Ids, Mask, floats_of
from windrow.exports.tokens.linking import STRICT, Link, Merging, links
from windrow.exports.tokens.tree import PrefixTree, ids_between
from windrow.records import Rollout, Status, Stop, Turn
from windrow.util.token_contexts import BrokenContext


class Span(NamedTuple):
    """Where a turn's output stands in a sequence, and whether it is trained there."""

    turn: int
    start: int
    stop: int
    trained: bool


class Facts(NamedTuple):
    """What a sequence's rollout says; the same for all its sequences."""

    group: str
    sample: int
    task: str
    reward: float | None
    status: Status
    stop: Stop
    truncated: bool
    segments: int


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSequence:
    """One row. The arrays are of one length; `loss_mask` is true on the sampled ids that are trained here.

    `logprobs` are the sampled ids' where the mask is true, else 0. `versions` are ranges (start, stop, policy version)
    of trained ids. `unanswered_tool_calls` are calls of its replies that never got a result.
    """

    rollout_id: str
    attempt: int
    segment: int
    input_ids: Ids
    loss_mask: Mask
    logprobs: Floats
    versions: tuple[tuple[int, int, str], ...]
    spans: tuple[Span, ...]
    logprob_kind: str | None
    unanswered_tool_calls: int
    facts: Facts

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def prompt_length(self) -> int:
        """What comes before the first trained id."""
        return next(span.start for span in self.spans if span.trained)

    @property
    def prompt_ids(self) -> Ids:
        return self.input_ids[: self.prompt_length]

    @property
    def completion_ids(self) -> Ids:
        """Everything from the first trained id on: replies, and what came between them."""
        return self.input_ids[self.prompt_length :]

    @property
    def completion_mask(self) -> Mask:
        return self.loss_mask[self.prompt_length :]

    @property
    def completion_logprobs(self) -> Floats:
        return self.logprobs[self.prompt_length :]


class Forest(NamedTuple):
    """The turns of a rollout that are trained, and how they go on from each other."""

    turns: Sequence[Turn]
    tree: PrefixTree
    numbers: list[int]  # of the turns that are trained
    links: dict[int, Link]

    @property
    def leaves(self) -> list[int]:
        """The turns that no other goes on from: each ends a sequence."""
        continued = {link.parent for link in self.links.values()}
        return [number for number in self.numbers if number not in continued]

    def chain(self, leaf: int) -> list[int]:
        """The turns of the sequence that ends with `leaf`, the first one first."""
        path = [leaf]
        while (link := self.links.get(path[-1])) is not None:
            path.append(link.parent)
        return path[::-1]


def check_exact(rollout: Rollout) -> None:
    if rollout.capture != "tokens":
        raise UsageError(
            f"rollout {rollout.id} was captured as {rollout.capture!r}, so it has no training sequences; "
            f"collect with --capture tokens"
        )


def grow(turns: Sequence[Turn], merging: Merging = STRICT) -> Forest:
    """How the turns hang together. Raises BrokenContext where a line's tokens do not fit together."""
    numbers = [
        number
        for number, turn in enumerate(turns)
        if turn.tokens is not None and turn.tokens.output and turn.role in merging.roles
    ]
    tree = PrefixTree(turns, frozenset(numbers))
    return Forest(turns, tree, numbers, links(tree, numbers, merging))


def training_sequences(rollout: Rollout, merging: Merging = STRICT) -> list[TrainingSequence]:
    """The sequences of a rollout, in the order of their last turns."""
    return planted(rollout, merging)[1]


def planted(rollout: Rollout, merging: Merging = STRICT) -> tuple[Forest, list[TrainingSequence]]:
    """How a rollout's turns hang together, and its sequences; an error names the rollout."""
    check_exact(rollout)
    try:
        forest = grow(rollout.turns, merging)
        return forest, _sequences(rollout, forest)
    except BrokenContext as problem:
        raise BrokenContext(
            f"rollout {rollout.id}.{rollout.attempt}: {problem} (see windrow verify)"
        ) from None


def _sequences(rollout: Rollout, forest: Forest) -> list[TrainingSequence]:
    leaves = forest.leaves
    facts = Facts(
        group=rollout.group,
        sample=rollout.sample,
        task=rollout.task.key,
        reward=rollout.reward,
        status=rollout.status,
        stop=rollout.stop,
        truncated=rollout.status == "truncated",
        segments=len(leaves),
    )
    unanswered = _unanswered(rollout)
    trained: set[int] = set()
    return [
        _sequence(rollout, forest, forest.chain(leaf), trained, facts, unanswered, segment)
        for segment, leaf in enumerate(leaves)
    ]


def _sequence(
    rollout: Rollout,
    forest: Forest,
    chain: list[int],
    trained: set[int],
    facts: Facts,
    unanswered: dict[int, int],
    segment: int,
) -> TrainingSequence:
    pieces, spans = _laid_out(forest, chain, trained)
    input_ids = np.concatenate(pieces)
    loss_mask = np.zeros(len(input_ids), np.bool_)
    logprobs = np.zeros(len(input_ids), np.float32)
    for span in spans:
        if span.trained:
            loss_mask[span.start : span.stop] = True
            logprobs[span.start : span.stop] = _logprobs(forest.turns, span)
    trained.update(chain)
    return TrainingSequence(
        rollout_id=rollout.id,
        attempt=rollout.attempt,
        segment=segment,
        input_ids=input_ids,
        loss_mask=loss_mask,
        logprobs=logprobs,
        versions=tuple(_versions(forest.turns, spans)),
        spans=tuple(spans),
        logprob_kind=_kind(forest.turns, spans),
        unanswered_tool_calls=sum(unanswered.get(turn, 0) for turn in chain) if unanswered else 0,
        facts=facts,
    )


def _laid_out(forest: Forest, chain: list[int], trained: set[int]) -> tuple[list[Ids], list[Span]]:
    """The ids of a chain in pieces, and where its outputs are."""
    tree, pieces, spans = forest.tree, [], []
    length = 0
    for number in chain:
        link = forest.links.get(number)
        prompt, context = tree.prompts[number], tree.contexts[number]
        start = link.start if link is not None else 0
        pieces += ids_between(prompt, start)
        pieces += ids_between(context, prompt.depth)
        length += prompt.depth - start
        spans.append(Span(number, length, length + context.depth - prompt.depth, number not in trained))
        length += context.depth - prompt.depth
    return pieces, spans


def _logprobs(turns: Sequence[Turn], span: Span) -> Floats:
    tokens = turns[span.turn].tokens
    assert tokens is not None
    logprobs = floats_of(tokens.logprobs or b"")
    if len(logprobs) != span.stop - span.start:
        raise BrokenContext(
            f"turn {span.turn} has {len(logprobs)} logprobs for {span.stop - span.start} sampled ids"
        )
    return logprobs


def _versions(turns: Sequence[Turn], spans: Sequence[Span]) -> list[tuple[int, int, str]]:
    spans_of_version = []
    for span in spans:
        versions = turns[span.turn].versions if span.trained else ()
        for position, (offset, version) in enumerate(versions):
            stop = span.start + versions[position + 1][0] if position + 1 < len(versions) else span.stop
            spans_of_version.append((span.start + offset, stop, version))
    return spans_of_version


def _kind(turns: Sequence[Turn], spans: Sequence[Span]) -> str | None:
    """What all its logprobs are; None where that is not known, `mixed` where they differ."""
    kinds = {tokens.logprob_kind for span in spans if (tokens := turns[span.turn].tokens) is not None}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def _unanswered(rollout: Rollout) -> dict[int, int]:
    """By turn, how many calls of its reply never got a result."""
    asking = [message for message in rollout.messages if message.tool_calls and message.turn is not None]
    if not asking:
        return {}
    answered = {message.tool_call_id for message in rollout.messages if message.role == "tool"}
    missing_by_turn: dict[int, int] = {}
    for message in asking:
        missing = sum(call.id not in answered for call in message.tool_calls or ())
        if missing and message.turn is not None:
            missing_by_turn[message.turn] = missing
    return missing_by_turn
