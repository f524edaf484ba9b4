"""Forks: where a prompt does not go on from the reply that it was made of, and why, as far as it can be told.

A turn that reads an earlier reply should begin with the ids of that turn, prompt and output. Where it does not, the
sequence forks: nothing that was sampled is lost, but the ids in between stand in two sequences.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec
import numpy as np

from windrow.exports.tokens.arrays import Ids
from windrow.exports.tokens.linking import MOST_SEAM
from windrow.exports.tokens.sequences import Forest
from windrow.exports.tokens.tree import Node, ids_between
from windrow.records import Rollout, Turn

Why = Literal["window", "history", "reasoning", "seam", "truncated", "retokenised", "calls", "rewritten"]
REASONS: dict[Why, str] = {
    "window": "the agent asked with other messages than before",
    "history": "the template wrote earlier messages otherwise",
    "reasoning": "the template left the reply's reasoning out",
    "seam": "the end of the reply was tokenised or closed otherwise",
    "truncated": "the reply was cut off at its length limit",
    "retokenised": "the reply's text was tokenised otherwise",
    "calls": "the template wrote the reply's tool calls otherwise",
    "rewritten": "the reply was written otherwise",
}
assert tuple(REASONS) == get_args(Why)
MOST_RESUMED = 4  # ids by which the rest of a reply is known again


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """Turn `turn` reads the reply of turn `after`, but its prompt departs from it at id `position`.

    `sampled` ids of that reply stand otherwise in the prompt: a trainer that overwrote them would lose them.
    """

    turn: int
    after: int
    position: int
    why: Why
    sampled: int


def forks(rollout: Rollout, forest: Forest) -> list[Fork]:
    forks = []
    for number, before in _predecessors(forest, len(rollout.messages)).items():
        if not _goes_on_from(forest, number, before):
            forks.append(_fork(rollout, forest, number, before))
    return forks


def _predecessors(forest: Forest, count: int) -> dict[int, int]:
    """For each turn that reads a reply, the turn that gave the last one it reads."""
    parents: dict[int, int] = {}
    writers: dict[int, int] = {}
    for number in forest.numbers:
        turn = forest.turns[number]
        read = next((writers[index] for index in reversed(_read(turn, count)) if index in writers), None)
        if read is not None:
            parents[number] = read
        if turn.writes is not None:
            writers[turn.writes] = number
    return parents


def _goes_on_from(forest: Forest, number: int, before: int) -> bool:
    link = forest.links.get(number)
    while link is not None and link.parent != before:
        link = forest.links.get(link.parent)
    return link is not None


def _fork(rollout: Rollout, forest: Forest, number: int, before: int) -> Fork:
    tree = forest.tree
    position = _departure(tree.prompts[number], tree.contexts[before])
    replied = max(position, tree.prompts[before].depth)
    return Fork(
        turn=number,
        after=before,
        position=position,
        why=_why(rollout, forest, number, before, position),
        sampled=tree.contexts[before].depth - replied,
    )


def _departure(a: Node, b: Node) -> int:
    """How many ids the two places have in common."""
    while a is not b:
        if a.depth >= b.depth:
            assert a.parent is not None
            a = a.parent
        else:
            assert b.parent is not None
            b = b.parent
    return a.depth


def _why(rollout: Rollout, forest: Forest, number: int, before: int, position: int) -> Why:
    turn, earlier = forest.turns[number], forest.turns[before]
    context = forest.tree.contexts[before]
    if not _reads_on(turn, earlier, len(rollout.messages)):
        return "window"
    if position < forest.tree.prompts[before].depth:
        return "history"
    if context.depth - position <= MOST_SEAM:
        return "seam"
    if earlier.finish == "length":
        return "truncated"
    replied = _joined(context, position)
    shown = _joined(forest.tree.prompts[number], position)
    if _resumes(replied, shown):
        return "retokenised"
    reply = next((message for message in rollout.messages if message.turn == before), None)
    if reply is not None and reply.reasoning:
        return "reasoning"
    return "calls" if reply is not None and reply.tool_calls else "rewritten"


def _reads_on(turn: Turn, earlier: Turn, count: int) -> bool:
    """Whether the turn was asked with all that the earlier one was, and its reply, in that order."""
    wanted = [*_read(earlier, count), earlier.writes]
    return _read(turn, count)[: len(wanted)] == wanted


def _read(turn: Turn, count: int) -> list[int]:
    """The messages that made a turn's prompt, of the `count` that there are."""
    return [index for start, stop in turn.reads for index in range(max(start, 0), min(stop, count))]


def _joined(node: Node, depth: int) -> Ids:
    pieces = ids_between(node, depth)
    return np.concatenate(pieces) if pieces else node.label[:0]


def _resumes(replied: Ids, shown: Ids) -> bool:
    """Whether the end of the reply is found again a little earlier or later: the same text in other ids."""
    known = replied[-max(2, min(MOST_RESUMED, len(replied) // 2)) :]
    slack = 8 + len(replied) // 4
    near = shown[: len(replied) + slack]
    if len(near) < len(known):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(near, len(known))
    places = np.flatnonzero((windows == known).all(axis=1)) + len(known)
    return bool(len(places) and np.abs(places - len(replied)).min() <= slack)
