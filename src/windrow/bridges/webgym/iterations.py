"""Which rollouts of a run are of one iteration (pass), and how its files are called."""

from __future__ import annotations

from pathlib import Path

from windrow.bridges.webgym.rows import TRAIN
from windrow.compact import Index
from windrow.identity import group_id
from windrow.records import Rollout
from windrow.store.directory import TASKS, Manifest
from windrow.store.ranks import collecting
from windrow.store.taskfile import read_known


class Iteration:
    """A pass over the tasks of a run. A rollout is of it if its group's id says so."""

    def __init__(self, run: Path, manifest: Manifest, number: int | None = None) -> None:
        """`number` None: that of the last call."""
        self.number = int(manifest.config.get("pass") or 0) if number is None else number
        self._groups = Index("I")
        if not (run / TASKS).exists():
            return
        for _, line in read_known(run / TASKS):
            if line is not None:
                group = group_id(
                    source=line.source,
                    split=line.split,
                    digest=line.digest,
                    occurrence=line.occurrence,
                    pass_=self.number,
                    behaviour=manifest.behaviour.hash,
                )
                self._groups.set(group, 0)

    def __contains__(self, rollout: Rollout) -> bool:
        return self._groups.get(rollout.group) is not None


def rank_of(manifest: Manifest) -> int | None:
    """Of a directory that is one rank's alone, its number."""
    ranks = collecting(manifest.ranks)
    return (
        ranks.present[0] if ranks is not None and ranks.world_size > 1 and len(ranks.present) == 1 else None
    )


def file_name(manifest: Manifest, iteration: int, form: str) -> str:
    """`train_trajectories.pt.iteration3`, with `_rank_k` where it is one rank's."""
    rank = rank_of(manifest)
    suffix = f"_rank_{rank}" if rank is not None else ""
    return f"{manifest.split or TRAIN}_trajectories.{form}.iteration{iteration}{suffix}"
