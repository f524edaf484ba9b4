"""The end of a run that ranks share: rank 0 waits until the others have finished their shares, then merges all into
one run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from windrow.collecting.collection import Collection
from windrow.collecting.compatibility import agreed_manifest
from windrow.collecting.merge import MergeResult, merge
from windrow.collecting.resolve import ResolvedRun
from windrow.engine.control import Control
from windrow.errors import UsageError, WindrowError
from windrow.store.lock import holder_of
from windrow.store.locks import RANK
from windrow.store.manifest import is_run, read_manifest
from windrow.store.merging.manifests import check_parts
from windrow.store.rank_progress import Ranks, collecting, share_of
from windrow.store.run_directory import refuse_strangers

LOOK_S = 0.5

Say = Callable[[str], None]


class Joined(msgspec.Struct, frozen=True):
    """The merged run, and one line for each rank whose share is incomplete."""

    merged: MergeResult
    lacking: list[str]

    @property
    def complete(self) -> bool:
        return self.merged.complete and not self.lacking


def refuse_merge(resolved: ResolvedRun, out: Path) -> None:
    """Refuse, before anything is collected, an `out` into which the collected runs could not be merged."""
    refuse_strangers(out, "--merge")
    ranks = range(resolved.rank.world_size if resolved.rank is not None else 1)
    if out.resolve() in {resolved.out_of(rank).resolve() for rank in ranks}:
        raise UsageError(
            f"--merge {out} is where the rollouts are collected. What ranks collect in one directory is one run already; else give "
            f"--merge a directory of its own"
        )
    if is_run(out):
        mine = agreed_manifest(resolved, None, regrade=False)
        check_parts((out, read_manifest(out)), (resolved.out, mine))


class Others:
    """The ranks of a collection from the view of the waiting rank: the directory and the progress of each."""

    def __init__(self, collection: Collection) -> None:
        resolved = collection.resolved
        self._envs = resolved.envs
        self._own = resolved.rank.number if resolved.rank is not None else 0
        count = resolved.rank.world_size if resolved.rank is not None else 1
        self.directories = [resolved.out_of(rank) for rank in range(count)]
        manifest = collection.directory.manifest if collection.directory is not None else None
        self._terms = collecting(manifest.ranks) if manifest is not None else None

    async def done(self, control: Control, deadline_s: float, say: Say) -> None:
        """Return when every rank has finished, when the time is over, or when the run is stopped."""
        stopped = asyncio.Event()
        control.listen(stopped.set)
        deadline = time.monotonic() + deadline_s
        announced: list[int] = []
        while not control.stopping and (waiting := [rank for rank in self._others() if self._at_work(rank)]):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if waiting != announced:
                announced = waiting
                say(f"waiting for rank {', '.join(map(str, waiting))}, for up to {left:,.0f} s")
            try:
                async with asyncio.timeout(min(LOOK_S, left)):
                    await stopped.wait()
            except TimeoutError:
                pass

    def join(self, out: Path, *, lock: bool, on_warning: Say) -> Joined:
        """Merge the directories that exist."""
        directories = [path for path in self.directories if is_run(path)]
        merged = merge(directories, out, envs=self._envs, lock=lock, on_warning=on_warning)
        lacking = (self._at_work(rank) or self._lacks(rank) for rank in self._others())
        return Joined(merged, [line for line in lacking if line is not None])

    def _others(self) -> Sequence[int]:
        return [rank for rank in range(len(self.directories)) if rank != self._own]

    def _ranks_of(self, rank: int) -> Ranks | None:
        """Return the ranks in this rank's manifest, if they share the same tasks in the same way."""
        path = self.directories[rank]
        if not is_run(path):
            return None
        ranks = collecting(read_manifest(path).ranks)
        same = ranks is not None and self._terms is not None and ranks.terms == self._terms.terms
        return ranks if same and ranks is not None and rank in ranks.present else None

    def _at_work(self, rank: int) -> str | None:
        """Return the reason to wait for a rank, or None."""
        path = self.directories[rank]
        try:
            ranks = self._ranks_of(rank)
        except WindrowError as problem:
            return f"rank {rank}: {problem}"
        if ranks is None:
            return f"rank {rank} has not collected its share of these tasks in {path}"
        counts = share_of(ranks, rank).counts
        if not counts or counts["pending"]:
            return f"rank {rank} has {counts['pending']:,} left" if counts else f"rank {rank} was broken off"
        holder = holder_of(path / f"lock.{RANK}{rank}")
        return f"rank {rank} is still writing ({holder})" if holder is not None else None

    def _lacks(self, rank: int) -> str | None:
        """Describe the part of a finished share that failed or is not graded, or return None."""
        left = share_of(self._ranks_of(rank), rank).left
        return f"rank {rank} has {left:,} that failed or are not graded" if left else None
