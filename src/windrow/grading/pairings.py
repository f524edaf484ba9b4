"""Who is compared with whom: all pairs, a ring, or the rounds of a Swiss tournament. Pure and deterministic."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

Pair = tuple[int, int]


def chunks(count: int, size: int | None) -> list[list[int]]:
    """Neighbours together, at most `size` of them; one that would be left alone joins those before it."""
    if size is None or count <= size:
        return [list(range(count))]
    cut = [list(range(start, min(start + size, count))) for start in range(0, count, size)]
    if len(cut[-1]) == 1:
        alone = cut.pop()
        cut[-1] += alone
    return cut


def all_pairs(members: Sequence[int]) -> list[Pair]:
    return [(a, b) for position, a in enumerate(members) for b in members[position + 1 :]]


def ring(members: Sequence[int]) -> list[Pair]:
    """Each with the next, and the last with the first."""
    if len(members) < 3:
        return all_pairs(members)
    return [tuple(sorted((a, b))) for a, b in zip(members, [*members[1:], members[0]], strict=True)]  # type: ignore[misc]


class Swiss:
    """Rounds in which members of like standing meet, nobody twice. An odd one out of a round sits out once."""

    def __init__(self, members: Sequence[int], *, rounds: int | None, seed: int) -> None:
        self._order = list(members)
        random.Random(seed).shuffle(self._order)
        self._met: set[Pair] = set()
        self._sat_out: set[int] = set()
        self._left = self._rounds(len(members), rounds)

    def next_round(self, standing: Sequence[float]) -> list[Pair]:
        """The pairs of the next round, by how the members stand now; none when it is over."""
        if not self._left or len(self._order) < 2:
            return []
        self._left -= 1
        ranked = sorted(self._order, key=lambda member: -standing[member])
        if len(ranked) % 2:
            out = next((member for member in reversed(ranked) if member not in self._sat_out), ranked[-1])
            self._sat_out.add(out)
            ranked.remove(out)
        pairs = self._matched(ranked) or []
        self._met.update(pairs)
        return pairs

    @staticmethod
    def _rounds(count: int, wanted: int | None) -> int:
        """At most half as many as there are members: beyond that nobody new is to be met. Two if they are odd."""
        if count < 2:
            return 0
        rounds = wanted or math.ceil(math.log2(count))
        return min(max(rounds, 2) if count % 2 else rounds, (count + 1) // 2)

    def _matched(self, ranked: list[int]) -> list[Pair] | None:
        """Each with the nearest in rank whom it has not met, so that all are matched; None where that cannot be."""
        if not ranked:
            return []
        first, *others = ranked
        for other in others:
            pair = (min(first, other), max(first, other))
            if pair in self._met:
                continue
            rest = self._matched([member for member in others if member != other])
            if rest is not None:
                return [pair, *rest]
        return None
