"""`windrow merge`: several runs merged into one, and measured as `windrow collect` measures a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from windrow.envs import BaseEnv
from windrow.records import OPPONENT
from windrow.stats.cache import CACHE, confirm_cache
from windrow.stats.metrics import METRICS, Metrics, measure_run, write_metrics
from windrow.store.merging import MergeProgress, MergeResult, merge_runs
from windrow.util.disk import Disk

__all__ = ["MergeProgress", "MergeResult", "merge"]


def merge(
    runs: Sequence[str | Path],
    out: str | Path,
    *,
    envs: Mapping[str, type[BaseEnv]] | None = None,
    lock: bool = True,
    on_progress: Callable[[MergeProgress], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
    disk: Disk | None = None,
) -> MergeResult:
    """Merge the runs, and the one at `out` if there is one, into `out`.

    Nothing that the runs name is imported: `aggregate` is asked of those of their environments that the caller has, `envs`.
    Raises UsageError for runs that are not parts of one run. In that case, and when the disk is full, `out` is unchanged.
    """
    return merge_runs(
        runs,
        out,
        measurer=_MetricsFiles(envs or {}),
        lock=lock,
        on_progress=on_progress,
        on_warning=on_warning,
        disk=disk,
    )


class _MetricsFiles:
    """metrics.json and its cache, as the Measurer of a merge."""

    files = frozenset({METRICS, CACHE})

    def __init__(self, envs: Mapping[str, type[BaseEnv]]) -> None:
        self._envs = envs

    def measure(self, folder: Path, disk: Disk, warn: Callable[[str], None]) -> int:
        with warnings.catch_warnings():
            # Nothing is said here of lines that cannot be read: every reader of the run is warned of them.
            warnings.simplefilter("ignore")
            measured = measure_run(folder, envs=self._envs, warn=warn)
        write_metrics(folder, measured, disk)
        return _ungraded(measured.metrics)

    def moved(self, run: Path) -> None:
        confirm_cache(run)


def _ungraded(metrics: Metrics) -> int:
    grades = [entry.agent_metrics.grade.count for entry in metrics.agents if entry.agent != OPPONENT]
    return sum(grade["pending"] + grade["failed"] for grade in grades)
