"""One run made of several: `windrow merge`."""

from windrow.store.merging.merge import Merged, MergeProgress, merge

__all__ = ["Merged", "MergeProgress", "merge"]
