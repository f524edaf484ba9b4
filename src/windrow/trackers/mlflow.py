"""MLflow: the process's own run if there is one, else a run of an experiment; where, MLFLOW_TRACKING_URI says."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from windrow.trackers.base import COLUMN, TABLE, Report

AT_ONCE = 500  # metrics: the server takes up to a thousand
CONFIG = "windrow-config.json"


def active() -> Any:
    """The run that this process has open, if any; asking imports nothing."""
    mlflow = sys.modules.get("mlflow")
    return mlflow.active_run() if mlflow is not None and hasattr(mlflow, "active_run") else None


def metric_name(name: str) -> str:
    """As MLflow allows it: pass@4 is pass_at_4."""
    return re.sub(r"[^\w.\-: /]", "_", name.replace("@", "_at_"))


class MlflowTracker:
    """The client's calls, not the module's: those keep their run to a thread."""

    def __init__(self, experiment: str | None) -> None:
        self._experiment = experiment or "windrow"
        self._run = active()
        self._ours = self._run is None
        self._step = 0

    def start(self, report: Report) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        self._step = report.rollouts
        if self._ours:
            found = self._client.get_experiment_by_name(self._experiment)
            experiment = (
                found.experiment_id if found is not None else self._client.create_experiment(self._experiment)
            )
            self._run = self._client.create_run(experiment, run_name=report.name)
        self._id: str = self._run.info.run_id
        self._client.log_dict(self._id, report.config, CONFIG)

    def metrics(self, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        moment = int(time.time() * 1000)
        metrics = [Metric(metric_name(name), value, moment, self._step) for name, value in numbers.items()]
        for start in range(0, len(metrics), AT_ONCE):
            self._client.log_batch(self._id, metrics=metrics[start : start + AT_ONCE])

    def rollouts(self, lines: Iterator[str]) -> None:
        """A table as MLflow's `load_table` reads it, by way of a file: only one rollout is held at a time."""
        with tempfile.TemporaryDirectory(prefix="windrow-") as directory:
            path = Path(directory) / f"{TABLE}.json"
            with path.open("w", encoding="utf-8") as file:
                file.write(f'{{"columns":["{COLUMN}"],"data":[')
                for number, line in enumerate(lines):
                    file.write("," * bool(number) + json.dumps([line], ensure_ascii=False))
                file.write("]}")
            self._client.log_artifact(self._id, str(path))
        artifacts = json.dumps([{"path": f"{TABLE}.json", "type": "table"}])
        self._client.set_tag(self._id, "mlflow.loggedArtifacts", artifacts)

    def finish(self) -> None:
        if self._ours:
            self._client.set_terminated(self._id)
