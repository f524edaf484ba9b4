"""The names of the files of one iteration (pass)."""

from __future__ import annotations

from windrow.errors import UsageError
from windrow.integrations.webgym.rows import TRAIN
from windrow.store.manifest import Manifest
from windrow.store.rank_progress import collecting


def rank_of(manifest: Manifest) -> int | None:
    """Return the rank's number if a directory belongs to one rank alone."""
    ranks = collecting(manifest.ranks)
    return (
        ranks.present[0] if ranks is not None and ranks.world_size > 1 and len(ranks.present) == 1 else None
    )


def file_name(manifest: Manifest, iteration: int, form: str) -> str:
    """`train_trajectories.pt.iteration3`, with `_rank_k` where it is one rank's."""
    rank = rank_of(manifest)
    suffix = f"_rank_{rank}" if rank is not None else ""
    split = manifest.split or TRAIN
    if not _is_plain_name(split):
        raise UsageError(
            f"the run's split is {split!r}, which is no part of a file's name; give -o a file instead of a directory"
        )
    return f"{split}_trajectories.{form}.iteration{iteration}{suffix}"


def _is_plain_name(text: str) -> bool:
    """Whether a file called so is in the directory that it is put into."""
    return text.isprintable() and not text.startswith(".") and not any(c in text for c in "/\\")
