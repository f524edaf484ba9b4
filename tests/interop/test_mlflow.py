"""The real MLflow with its file store: what was sent is read back with its client."""

from __future__ import annotations

import json
from pathlib import Path

import mlflow
import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

import windrow
from tests.interop.sending import ROWS, WANTED, check_rollouts, collect
from windrow.policies.scripted import CallablePolicy
from windrow.trackers.mlflow import CONFIG, metric_name


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/store")


def found(experiment: str) -> Run:
    client = MlflowClient()
    [run] = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return run


def artifact(run: Run, name: str) -> dict:
    return json.loads(Path(MlflowClient().download_artifacts(run.info.run_id, name)).read_text())


def check(run: Run) -> None:
    table = artifact(run, "Rollouts.json")
    assert table["columns"] == ["Rollout"]
    check_rollouts([row[0] for row in table["data"]])
    names = {metric_name(name): value for name, value in WANTED.items()}
    assert {name: run.data.metrics[name] for name in names} == pytest.approx(names)


def test_the_store_holds_the_table_and_the_metric_names() -> None:
    assert collect("--track", "mlflow:mine") == 0
    run = found("mine")
    check(run)
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "Rollouts.json", "type": "table"}]
    assert artifact(run, CONFIG)["samples"] == 2
    [metric] = MlflowClient().get_metric_history(run.info.run_id, "chat/mean/reward")
    assert metric.step == 4  # rollouts


def test_a_second_run_of_an_experiment_and_only_the_metrics() -> None:
    assert collect("--track", "mlflow") == 0
    assert collect("--track", "mlflow", "--no-upload-rollouts") == 0
    client = MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("windrow").experiment_id])
    names = [{file.path for file in client.list_artifacts(run.info.run_id)} for run in runs]
    assert sorted(map(len, names)) == [1, 2]
    assert len(runs) == 2


async def test_an_open_run_is_used_unasked_and_left_open() -> None:
    mlflow.set_experiment("training")
    with mlflow.start_run() as mine:
        policy = CallablePolicy(lambda request: "It is 1. ☃", name="echo")
        async for _ in windrow.collect(ROWS, policy=policy, samples=2, scorers=["number"], out="run"):
            pass
        assert mlflow.active_run().info.run_id == mine.info.run_id
        assert MlflowClient().get_run(mine.info.run_id).info.status == "RUNNING"
    check(found("training"))


def test_a_store_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/file/store")
    assert collect("--track", "mlflow") == 0
    assert "warning: --track mlflow: nothing was sent: " in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.json").exists()
