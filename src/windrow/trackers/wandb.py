"""Weights & Biases: the process's own run if there is one, else a run that is made and finished here."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from windrow.trackers.base import COLUMN, TABLE, Report

# Of a run that is made here: nothing of the command line, the code, the repository or the terminal goes with it.
SETTINGS = {
    "console": "off",
    "silent": True,
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
}


def active() -> Any:
    """The run that this process has open, if any; asking imports nothing."""
    return getattr(sys.modules.get("wandb"), "run", None)


class WandbTracker:
    def __init__(self, project: str | None) -> None:
        self._project = project or "windrow"
        self._run = active()  # asked for where the user's code runs, not in a thread
        self._ours = self._run is None

    def start(self, report: Report) -> None:
        import wandb

        if self._ours:
            known = {name: value for name, value in SETTINGS.items() if hasattr(wandb.Settings(), name)}
            self._run = wandb.init(
                project=self._project,
                name=report.name,
                config={"windrow": report.config},
                settings=wandb.Settings(**known),
            )
        else:
            self._run.config.update({"windrow": report.config}, allow_val_change=True)

    def metrics(self, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers))

    def rollouts(self, lines: Iterator[str]) -> None:
        import wandb

        table = wandb.Table(columns=[COLUMN])
        for line in lines:
            table.add_data(line)
        self._run.log({TABLE: table})

    def finish(self) -> None:
        if self._ours:
            self._run.finish()
