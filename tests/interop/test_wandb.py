"""The real wandb, offline: what its files hold is read back with its own reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal.datastore import DataStore

import windrow
from tests.interop.sending import ROWS, WANTED, check_rollouts, collect
from windrow.cli.main import main
from windrow.policies.scripted import CallablePolicy


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory of its own; wandb reads its variables once, unless it is taken down."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    yield
    wandb.teardown()


class Offline:
    """One offline run, as its .wandb file has it."""

    def __init__(self, directory: Path) -> None:
        wandb.teardown()  # as at the end of a process: only then is the file sure to be whole
        [file] = directory.glob("wandb/offline-run-*/run-*.wandb")
        self.directory = file.parent
        self.bytes = b"".join(path.read_bytes() for path in file.parent.rglob("*") if path.is_file())
        self.history: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.kinds: list[str] = []
        store = DataStore()
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            self.kinds.append(record.WhichOneof("record_type"))
            if self.kinds[-1] == "run":
                self.project = record.run.project
                self.name = record.run.display_name
            for item in record.history.item:
                name, *below = item.nested_key or [item.key]
                value = json.loads(item.value_json)
                if below:
                    self.history.setdefault(name, {})[below[0]] = value
                else:
                    self.history[name] = value
            for item in (*record.run.config.update, *record.config.update):
                self.config[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)

    @property
    def table(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            (self.directory / "files" / self.history["Rollouts"]["path"]).read_text()
        )
        return found


def test_the_files_hold_the_table_and_the_metric_names(tmp_path: Path) -> None:
    assert collect("--track", "wandb:mine") == 0
    found = Offline(tmp_path)
    assert (found.project, found.name) == ("mine", "run")
    assert found.history["Rollouts"]["_type"] == "table-file"
    assert found.table["columns"] == ["Rollout"]
    check_rollouts([row[0] for row in found.table["data"]])
    assert {name: found.history[name] for name in WANTED} == pytest.approx(WANTED)
    numbers = [value for name, value in found.history.items() if "/" in name]
    assert {type(value) for value in numbers} <= {int, float}
    assert found.config["windrow"]["samples"] == 2


def test_they_hold_no_key_no_command_line_and_no_code(tmp_path: Path) -> None:
    assert collect("--track", "wandb") == 0
    found = Offline(tmp_path)
    assert b"0123456789" * 4 not in found.bytes
    assert not list(tmp_path.rglob("wandb-metadata.json"))
    assert "environment" not in found.kinds


def test_only_the_metrics_are_sent_when_asked(tmp_path: Path) -> None:
    assert collect("--track", "wandb", "--no-upload-rollouts") == 0
    found = Offline(tmp_path)
    assert "Rollouts" not in found.history
    assert found.history["chat/mean/reward"] == 0.5


async def test_an_open_run_is_used_unasked_and_left_open(tmp_path: Path) -> None:
    mine = wandb.init(project="training", name="step", settings=wandb.Settings(console="off"))
    policy = CallablePolicy(lambda request: "It is 1. ☃", name="echo")
    async for _ in windrow.collect(ROWS, policy=policy, samples=2, scorers=["number"], out="run"):
        pass
    mine.log({"loss": 0.25})
    mine.finish()
    found = Offline(tmp_path)
    assert (found.project, found.name, found.history["loss"]) == ("training", "step", 0.25)
    check_rollouts([row[0] for row in found.table["data"]])
    assert {name: found.history[name] for name in WANTED} == pytest.approx(WANTED)


def test_a_run_is_sent_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert collect() == 0
    assert not list(tmp_path.glob("wandb"))
    assert main(["stats", "run", "--track", "wandb:later"]) == 0
    assert Offline(tmp_path).project == "later"


def test_a_server_that_nobody_reaches_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "5")
    assert collect("--track", "wandb") == 0
    assert "warning: --track wandb: nothing was sent: " in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.json").exists()
