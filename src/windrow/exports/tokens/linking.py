"""Linking: which turn each turn goes on from, so that the sequences are as few as the ids allow.

Strictly, a turn goes on from another whose whole context (prompt and output) its prompt begins with: from the longest
such. With `tolerant`, also from one whose output ends in other end-of-turn tokens than the template writes in its place:
the sampled ones stay, the template's give way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from windrow.exports.tokens.tree import Node, PrefixTree, ancestors, ids_between
from windrow.records import TurnRole

MOST_SEAM = 4  # tokens at the end of a reply that a tolerant merge may find otherwise in the next prompt


@dataclass(frozen=True)
class Merging:
    """How turns become sequences. `end_of_turn` are the ids that a tolerant merge takes for the end of a reply."""

    roles: frozenset[TurnRole] = frozenset({"agent"})
    tolerant: bool = False
    end_of_turn: frozenset[int] = field(default=frozenset())


STRICT = Merging()


class Link(NamedTuple):
    """A turn goes on from `parent`; of its prompt, the ids from `start` on follow the parent's output."""

    parent: int
    start: int
    given_way: int = 0  # ids of the template that are not in the sequence
    kept: int = 0  # sampled ids that are there in their place


def links(tree: PrefixTree, numbers: list[int], merging: Merging) -> dict[int, Link]:
    """Of these turns, each of which has sampled something, those that go on from another."""
    links: dict[int, Link] = {}
    continued: set[int] = set()
    for number in numbers:
        link = _strict(tree.prompts[number], continued)
        if merging.tolerant:
            link = _spliced(tree, number, link, merging.end_of_turn) or link
        if link is not None:
            links[number] = link
            continued.add(link.parent)
    return links


def _strict(prompt: Node, continued: set[int]) -> Link | None:
    for node in ancestors(prompt):
        if node.turns:
            # Of replies that are equal, one that nothing goes on from yet: the other keeps a sequence of its own.
            parent = max(node.turns, key=lambda turn: (turn not in continued, turn))
            return Link(parent, node.depth)
    return None


def _spliced(tree: PrefixTree, number: int, strict: Link | None, ends: frozenset[int]) -> Link | None:
    """The turn that this one would continue, were it not for the end-of-turn tokens between them."""
    prompt = tree.prompts[number]
    below = prompt
    for node in ancestors(prompt):
        if strict is not None and node.depth <= strict.start:
            return None
        if node is not prompt:
            for parent, kept in _ending_below(node, below, ends, 0):
                following = _following(prompt, node.depth)
                seam = sum(1 for _ in takewhile(ends.__contains__, following[:kept]))
                # Something of the reply is shared, and something follows it: not the same prompt asked again.
                if tree.prompts[parent].depth < node.depth and len(following) > seam and parent != number:
                    return Link(parent, node.depth + seam, given_way=seam, kept=kept)
        below = node
    return None


def _ending_below(node: Node, but: Node, ends: frozenset[int], depth: int) -> Iterator[tuple[int, int]]:
    """Turns whose context ends a few end-of-turn tokens below the node, not by way of the child `but`."""
    for child in node.children.values():
        reached = depth + len(child.label)
        if child is but or reached > MOST_SEAM or not ends.issuperset(child.label.tolist()):
            continue
        yield from ((turn, reached) for turn in child.turns)
        yield from _ending_below(child, but, ends, reached)


def _following(prompt: Node, depth: int) -> list[int]:
    """The first ids of the prompt after `depth`: as many as a seam may have, and one."""
    ids: list[int] = np.concatenate(ids_between(prompt, depth))[: MOST_SEAM + 1].tolist()
    return ids
