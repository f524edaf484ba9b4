"""Drawing tasks: a random part of many tasks, the same part for the same seed.

The order of a draw is a hash of the seed, the pass and the identity of a task. So a draw does not depend on the order
of the rows, a larger uniform draw includes the smaller one, and every rank and every machine draws the same tasks.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from windrow.records import Json
from windrow.tasks.row_formats import traits_of
from windrow.tasks.sharding import shares
from windrow.util.hash_index import HashIndex

MADE_SEED_BITS = 31


class Category(msgspec.Struct, frozen=True):
    """One range of difficulties in a draw by ratio, both ends included, and the number of tasks asked for and drawn."""

    range: tuple[float, float]
    weight: float
    asked: int = 0
    drawn: int = 0


class Draw(msgspec.Struct, frozen=True, kw_only=True):
    """The record in run.json of how the tasks of one pass were selected: `tasks` of `of`.

    `blocked` maps each domain that was left out to the time when it was blocked, as of the time `at`; `left_out`
    counts the tasks on these domains.
    """

    pass_: int = msgspec.field(name="pass")
    how: str | None = None
    n: int | None = None
    seed: int | None = None
    ratio: dict[str, Category] = {}
    tasks: int = 0
    of: int = 0
    blocked: dict[str, str] = {}
    left_out: int = 0
    at: float | None = None


class TraitTable:
    """The traits of every task of a source that a draw depends on, collected as the rows are read."""

    def __init__(self) -> None:
        self._difficulties = array("d")
        self._sites = array("I")
        self._hosts: dict[str | None, int] = {}
        self._seen = HashIndex()
        self._repeated: set[int] = set()

    def watch(self, row: Mapping[str, Json]) -> None:
        traits = traits_of(row)
        position = len(self._sites)
        self._difficulties.append(_number(traits.difficulty))
        self._sites.append(self._hosts.setdefault(traits.site, len(self._hosts)))
        if self._seen.get(traits.unique) is None:
            self._seen.set(traits.unique, position)
        else:
            self._repeated.add(position)

    def __len__(self) -> int:
        return len(self._sites)

    def difficulty(self, position: int) -> float:
        """Return the difficulty of a task; nan if it has none."""
        return self._difficulties[position]

    def is_repeated(self, position: int) -> bool:
        """Return whether an earlier row asks the same."""
        return position in self._repeated

    def not_on(self, is_blocked: Callable[[str], bool]) -> list[int]:
        """Return the tasks that are on no such site; the predicate is called once per site."""
        blocked = {number for host, number in self._hosts.items() if host is not None and is_blocked(host)}
        return [position for position, site in enumerate(self._sites) if site not in blocked]


def _number(difficulty: float | None) -> float:
    try:
        return math.nan if difficulty is None else float(difficulty)
    except OverflowError:  # more digits than a float has room for
        return math.inf if (difficulty or 0) > 0 else -math.inf


def draw_uniform(candidates: Iterable[int], n: int, rank: Callable[[int], bytes]) -> list[int]:
    """Return `n` of the candidates, or all if there are fewer, in the order of the draw."""
    return sorted(candidates, key=rank)[:n]


def draw_by_ratio(
    candidates: Sequence[int],
    n: int,
    ratio: Mapping[str, Category],
    rank: Callable[[int], bytes],
    difficulty: Callable[[int], float],
) -> tuple[list[int], dict[str, Category]]:
    """Draw from each category its share of `n`, or all it has; return the tasks, and the counts asked for and drawn."""
    parts = shares(n, [category.weight for category in ratio.values()])
    drawn: list[int] = []
    categories: dict[str, Category] = {}
    for (name, category), asked in zip(ratio.items(), parts, strict=True):
        low, high = category.range
        drawn_here = draw_uniform((c for c in candidates if low <= difficulty(c) <= high), asked, rank)
        categories[name] = msgspec.structs.replace(category, asked=asked, drawn=len(drawn_here))
        drawn += drawn_here
    return sorted(drawn, key=rank), categories


def ranking(identity: Callable[[int], tuple[str, int]], seed: int, pass_: int) -> Callable[[int], bytes]:
    """Return the sort key of a draw: an order of the tasks that depends on the seed and the pass."""

    def rank(position: int) -> bytes:
        name, occurrence = identity(position)
        return hashlib.sha256(f"draw:{seed}:{pass_}:{name}:{occurrence}".encode()).digest()

    return rank


def made_seed(source: str, split: str | None) -> int:
    """Return a default seed that is the same for every rank and every call."""
    seed_digest = hashlib.sha256(f"draw:{source}:{split}".encode()).digest()
    return int.from_bytes(seed_digest[:4], "big") >> (32 - MADE_SEED_BITS)
