"""The prefix tree of a rollout: every context of its turns as a path from the root, shared as far as they are equal.

A turn's prompt and its context (prompt and output) each end in a node. The order of the turns does not matter, except
that a turn may only be stored as continuing an earlier one. Time and memory are linear in what is stored: ids that a
turn takes over from an earlier one are equal by definition and are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from windrow.exports.tokens.arrays import Ids, ids_of, shared_length
from windrow.records import Tokens, Turn
from windrow.util.token_contexts import BrokenContext


class Node:
    """A place in the tree; `label` are the ids from its parent to it, `turns` those whose context ends here."""

    __slots__ = ("children", "depth", "label", "parent", "turns")

    def __init__(self, parent: Node | None, label: Ids, depth: int) -> None:
        self.parent = parent
        self.label = label
        self.depth = depth
        self.children: dict[int, Node] = {}
        self.turns: list[int] = []


class PrefixTree:
    """All contexts of a rollout; `prompts` and `contexts` say at which node those of a turn end."""

    def __init__(self, turns: Sequence[Turn], members: frozenset[int]) -> None:
        """Of the turns, `members` are found by `Node.turns`; the others only help to rebuild them."""
        self.root = Node(None, ids_of(b""), 0)
        self.prompts: dict[int, Node] = {}  # where a turn's prompt ends
        self.contexts: dict[int, Node] = {}  # where its output ends
        for number, turn in enumerate(turns):
            if turn.tokens is not None:
                self._insert(number, turn.tokens)
                if number in members:
                    self.contexts[number].turns.append(number)

    def _insert(self, number: int, tokens: Tokens) -> None:
        start = self.root
        if tokens.prefix:
            before = self.contexts.get(tokens.continues) if tokens.continues is not None else None
            if before is None or not 0 <= tokens.prefix <= before.depth:
                raise BrokenContext(
                    f"turn {number} takes {tokens.prefix} ids of turn {tokens.continues}, which has not so many"
                )
            start = _at_depth(before, tokens.prefix)
        self.prompts[number] = _descend(start, ids_of(tokens.prompt_new))
        self.contexts[number] = _descend(self.prompts[number], ids_of(tokens.output))


def ancestors(node: Node) -> Iterator[Node]:
    """The node itself, then those above it, up to the root."""
    at: Node | None = node
    while at is not None:
        yield at
        at = at.parent


def ids_between(node: Node, depth: int) -> list[Ids]:
    """The ids from `depth` down to the node, in pieces, in their order."""
    pieces: list[Ids] = []
    while node.depth > depth:
        assert node.parent is not None
        above = node.parent
        pieces.append(node.label if above.depth >= depth else node.label[depth - above.depth :])
        node = above
    pieces.reverse()
    return pieces


def _descend(node: Node, ids: Ids) -> Node:
    """The node at the end of `ids`, which begin at `node`; made where it is not there."""
    while len(ids):
        child = node.children.get(int(ids[0]))
        if child is None:
            child = node.children[int(ids[0])] = Node(node, ids, node.depth + len(ids))
            return child
        shared = shared_length(child.label, ids)
        node = child if shared == len(child.label) else _split(child, shared)
        ids = ids[shared:]
    return node


def _at_depth(node: Node, depth: int) -> Node:
    """The node of this depth at or above `node`; made where it is not there."""
    while node.depth > depth:
        assert node.parent is not None
        if node.parent.depth < depth:
            return _split(node, depth - node.parent.depth)
        node = node.parent
    return node


def _split(node: Node, at: int) -> Node:
    """A new node on the edge to `node`, after the first `at` ids of its label."""
    above = node.parent
    assert above is not None
    middle = Node(above, node.label[:at], above.depth + at)
    above.children[int(node.label[0])] = middle
    node.parent, node.label = middle, node.label[at:]
    middle.children[int(node.label[0])] = node
    return middle
