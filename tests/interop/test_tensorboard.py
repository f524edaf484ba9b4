"""The real TensorBoard: its event files are read back with its own reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.interop.sending import WANTED, check_rollouts, collect


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def events(directory: str) -> EventAccumulator:
    found = EventAccumulator(directory, size_guidance={"tensors": 0})
    found.Reload()
    return found


def test_the_event_file_holds_the_rollouts_and_the_metric_names() -> None:
    assert collect("--track", "tensorboard") == 0
    found = events("run/tensorboard")
    values = {name: found.Scalars(name)[0] for name in WANTED}
    assert {name: event.value for name, event in values.items()} == pytest.approx(WANTED)
    assert {event.step for event in values.values()} == {4}  # rollouts
    texts = found.Tensors("Rollouts/Rollout")
    assert [event.step for event in texts] == [0, 1, 2, 3]
    check_rollouts([event.tensor_proto.string_val[0].decode() for event in texts])
    assert found.SummaryMetadata("Rollouts/Rollout").plugin_data.plugin_name == "text"


def test_only_the_metrics_are_sent_when_asked_and_to_the_directory_that_is_named() -> None:
    assert collect("--track", "tensorboard:logs/mine", "--no-upload-rollouts") == 0
    found = events("logs/mine")
    assert found.Tags()["tensors"] == []
    assert found.Scalars("chat/mean/reward")[0].value == 0.5
    assert not Path("run/tensorboard").exists()


def test_a_directory_that_cannot_be_made_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a directory")
    assert collect("--track", "tensorboard:file/logs") == 0
    assert "warning: --track tensorboard: nothing was sent: " in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.json").exists()
