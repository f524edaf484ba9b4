"""Merging the logs of several runs into one run.

This package reads, compares and writes run directories. How a merged run is measured is handed in by the caller:
`windrow.merge` lives in `windrow.collecting.merge`.
"""

from windrow.store.merging.counting import Measurer
from windrow.store.merging.merge import MergeProgress, MergeResult, merge_runs

__all__ = ["Measurer", "MergeProgress", "MergeResult", "merge_runs"]
