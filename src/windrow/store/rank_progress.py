"""What run.json says of the ranks that share a run: how its tasks are shared out, who has collected, how far each is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from windrow.tasks.sharding import Rank


class Redo(msgspec.Struct, frozen=True):
    """A `--redo` under way: what it selects, among the lines that stood in the log when it began."""

    where: str
    sizes: dict[str, int]


class RankShare(msgspec.Struct, frozen=True, kw_only=True):
    """How far a rank was when it last wrote its counts, and its redo, if one is under way."""

    counts: dict[str, int] = {}
    redo: Redo | None = None

    @property
    def left(self) -> int | None:
        """What is not done, not graded or failed; None while nobody knows."""
        return (
            sum(self.counts.get(name, 0) for name in ("pending", "failed", "ungraded"))
            if self.counts
            else None
        )


class Ranks(msgspec.Struct, frozen=True):
    """Ranks that share the tasks of a run by these weights: `present` have collected here, the others elsewhere or not
    yet.

    While they collect, `plan` is a digest of what is shared out, and `shares` says by rank how far each is.
    """

    weights: list[float]
    present: list[int] = []
    plan: str = ""
    shares: dict[str, RankShare] = {}

    @property
    def world_size(self) -> int:
        return len(self.weights)

    @property
    def missing(self) -> list[int]:
        present = set(self.present)
        return [rank for rank in range(self.world_size) if rank not in present]

    @property
    def terms(self) -> tuple[list[float], str]:
        """What all of them go by."""
        return self.weights, self.plan


def collecting(ranks: Sequence[Ranks]) -> Ranks | None:
    """Those that share the tasks now; None for a run that one call has collected or that was merged."""
    return next((each for each in ranks if each.plan), None)


def ranks_with(before: Ranks | None, rank: Rank, plan: str) -> Ranks:
    """The ranks of a run with one that collects now; what is known of others stays if it is shared out as before."""
    ranks = Ranks(list(rank.weights), plan=plan)
    if before is not None and before.terms == ranks.terms:
        ranks = before
    return msgspec.structs.replace(ranks, present=sorted({*ranks.present, rank.number}))


def share_of(ranks: Ranks | None, rank: int) -> RankShare:
    return ranks.shares.get(str(rank), RankShare()) if ranks is not None else RankShare()


def with_share(ranks: Ranks, rank: int, share: RankShare) -> Ranks:
    return msgspec.structs.replace(ranks, shares={**ranks.shares, str(rank): share})


def counts_of(ranks: Ranks, planned: int) -> dict[str, int]:
    """The counts of the whole run, which has so many slots: what its ranks have said, added up."""
    counts_of_ranks = [share.counts for share in ranks.shares.values()]
    sums = {
        name: sum(counts.get(name, 0) for counts in counts_of_ranks)
        for name in ("done", "failed", "ungraded")
    }
    return {
        "planned": planned,
        "done": sums["done"],
        "failed": sums["failed"],
        "pending": planned - sums["done"] - sums["failed"],
        "ungraded": sums["ungraded"],
    }


def unfinished(ranks: Sequence[Ranks]) -> list[str]:
    """A line for each rank whose share is not done here; none if others have done all of it."""
    unfinished_lines = [_unfinished(each) for each in ranks]
    return [line for lines in unfinished_lines for line in lines] if all(unfinished_lines) else []


def _unfinished(ranks: Ranks) -> list[str]:
    lines = []
    missing = set(ranks.missing)
    for rank in range(ranks.world_size):
        if rank in missing:
            lines.append(f"rank {rank} is missing")
        elif (left := share_of(ranks, rank).left) is None and ranks.shares:
            lines.append(f"rank {rank} was broken off")
        elif left:
            lines.append(f"rank {rank} has {left:,} left")
    return lines
