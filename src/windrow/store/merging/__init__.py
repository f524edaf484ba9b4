"""Merging the logs of several runs into one run.

`merge` is the way through: `inputs` opens the runs, `input_scan` reads each line once, `versions` chooses between versions of
the same line, `writing` writes the winners, `conflicts` the losers, `blobs` copies large bytes, and `manifests` and `counting`
make the new run.json.

How a merged run is measured does not belong here: the caller hands it in (`windrow.merge` is `collecting/merge.py`).
"""

from windrow.store.merging.counting import Measurer
from windrow.store.merging.merge import MergeProgress, MergeResult, merge_runs

__all__ = ["Measurer", "MergeProgress", "MergeResult", "merge_runs"]
