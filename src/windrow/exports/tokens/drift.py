"""The drift report: how a run's turns became sequences, where they forked and why, and what that cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from windrow.exports.tokens.forks import Fork, forks
from windrow.exports.tokens.linking import STRICT, Merging
from windrow.exports.tokens.sequences import Forest, TrainingSequence, planted
from windrow.exports.tokens.tree import Node, ancestors
from windrow.records import Rollout
from windrow.util.token_contexts import ID_BYTES, BrokenContext

MOST_EXAMPLES = 10


class ForkExample(msgspec.Struct, frozen=True):
    rollout: str
    attempt: int
    fork: Fork


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Of the rollouts that are exact (`capture: tokens`); the others are counted by what they were captured as.

    `lost` are tokens that the agent sampled and no sequence trains, `spared` those that a fork kept from being
    overwritten, `repeated` those that stand in more than one sequence, each time but the first.
    """

    rollouts: int
    exact: int
    others: dict[str, int]
    broken: int
    turns: int
    sequences: int
    tokens: int
    sampled: int
    trained: int
    lost: int
    spared: int
    repeated: int
    spliced: int
    other_roles: dict[str, int]
    forks: dict[str, int]
    examples: tuple[ForkExample, ...]
    turn_tokens: int

    @property
    def turns_a_sequence(self) -> float | None:
        """The merge ratio: 1 where nothing could be merged."""
        return self.turns / self.sequences if self.sequences else None

    @property
    def context_ratio(self) -> float | None:
        """How many times the tokens of the sequences would be trained on with a row a turn."""
        return self.turn_tokens / self.tokens if self.tokens else None


class DriftCounter:
    """Takes in rollouts one at a time."""

    def __init__(self, merging: Merging = STRICT) -> None:
        self._merging = merging
        self._counts: Counter[str] = Counter()
        self._others: Counter[str] = Counter()
        self._roles: Counter[str] = Counter()
        self._forks: Counter[str] = Counter()
        self._examples: list[ForkExample] = []

    def add(self, rollout: Rollout) -> list[TrainingSequence]:
        """Its sequences; none where it is not exact, or broken."""
        self._counts["rollouts"] += 1
        if rollout.capture != "tokens":
            self._others[rollout.capture] += 1
            return []
        try:
            forest, sequences = planted(rollout, self._merging)
        except BrokenContext:
            self._counts["broken"] += 1
            return []
        new_forks = forks(rollout, forest)
        self._forks.update(fork.why for fork in new_forks)
        self._examples += [ForkExample(rollout.id, rollout.attempt, fork) for fork in new_forks][
            : MOST_EXAMPLES - len(self._examples)
        ]
        tree = forest.tree
        self._counts["exact"] += 1
        self._counts["turns"] += len(forest.numbers)
        self._counts["sequences"] += len(sequences)
        self._counts["turn_tokens"] += sum(tree.contexts[number].depth for number in forest.numbers)
        self._counts["spared"] += sum(fork.sampled for fork in new_forks)
        self._counts["spliced"] += sum(link.kept > 0 for link in forest.links.values())
        self._count_tokens(rollout, sequences)
        self._counts["repeated"] += sum(map(len, sequences)) - _distinct(forest)
        return sequences

    def _count_tokens(self, rollout: Rollout, sequences: list[TrainingSequence]) -> None:
        counts = self._counts
        for turn in rollout.turns:
            if turn.tokens is not None:
                sampled = len(turn.tokens.output) // ID_BYTES
                if turn.role in self._merging.roles:
                    counts["sampled"] += sampled
                else:
                    self._roles[turn.role] += sampled
        for sequence in sequences:
            counts["tokens"] += len(sequence)
            counts["trained"] += int(sequence.loss_mask.sum())

    def report(self) -> Drift:
        counts = self._counts
        names = (
            "rollouts exact broken turns sequences tokens sampled trained spared repeated spliced turn_tokens"
        )
        return Drift(
            others=dict(self._others),
            other_roles=dict(self._roles),
            forks=dict(self._forks.most_common()),
            examples=tuple(self._examples),
            lost=counts["sampled"] - counts["trained"],
            **{name: counts[name] for name in names.split()},
        )


def _distinct(forest: Forest) -> int:
    """The ids of all sequences, what they share counted once."""
    seen: set[Node] = set()
    for leaf in forest.leaves:
        for node in ancestors(forest.tree.contexts[leaf]):
            if node in seen:
                break
            seen.add(node)
    given_way = sum(link.given_way - link.kept for link in forest.links.values())
    return sum(len(node.label) for node in seen) - given_way


def drift_of(rollouts: Iterable[Rollout], merging: Merging = STRICT) -> Drift:
    counter = DriftCounter(merging)
    for rollout in rollouts:
        counter.add(rollout)
    return counter.report()
