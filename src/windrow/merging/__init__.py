"""One run made of several: `windrow merge`."""

from windrow.merging.run import Merged, MergeProgress, merge

__all__ = ["Merged", "MergeProgress", "merge"]
