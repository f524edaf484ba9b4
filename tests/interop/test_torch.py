"""The real torch: the .pt files of `--to webgym` are loaded as plain data, and WebGym's formulas, written down here once more, find
in them what `windrow stats --as webgym` says."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import torch

import windrow
from tests.support.webgym_data import Action, browsed, failed, write_browsed
from windrow.integrations.webgym.report import report

CLICK: Action = ("click", {"x": 640.0, "y": 384.0})
BACK: Action = ("back", {})
ANSWER: Action = ("answer", {"text": "drei €"})


def a_run(path: Path) -> Path:
    rollouts = [
        browsed(CLICK, BACK, ANSWER, number=1, reward=1.0, pass_=3),
        browsed(None, ANSWER, number=2, reward=0.0, pass_=3),
        browsed(CLICK, CLICK, number=3, blocked=True, pass_=3),
        failed(CLICK, number=4, pass_=3),
        failed(number=5, kind="invalid_url", pass_=3),
        browsed(*[CLICK] * 10, number=6, reward=0.0, pass_=3),
        browsed(*[CLICK] * 9, number=7, reward=0.0, pass_=3),
        browsed(ANSWER, number=1, reward=1.0, pass_=2),
    ]
    return write_browsed(path, rollouts, config={"pass": 3})


def loaded(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def by_formula(trajectories: list[Any]) -> dict[str, float]:
    def is_crashed(steps: list[Any]) -> bool:
        keys = [step["action"]["action"]["key"] for step in steps]
        short = len(keys) < 10 and keys[-1] != "answer" and not steps[-1]["reward"]["is_blocked"]
        return keys[0] == "invalid_url" or "none" in keys or short

    valid = [steps for steps in trajectories if not is_crashed(steps)]
    counted = [steps for steps in valid if not steps[-1]["reward"]["is_blocked"]]
    steps = [step for trajectory in counted for step in trajectory]
    return {
        "success_rate": sum(trajectory[-1]["reward"]["reward"] == 1 for trajectory in counted) / len(counted),
        "avg_chars_per_response": sum(len(step["response"]["raw_response"]) for step in steps) / len(steps),
        "avg_steps": len(steps) / len(counted),
        "goback_rate": sum(step["action"]["action"]["key"] == "goback" for step in steps) / len(steps),
        "crashed_rate": 1 - len(valid) / len(trajectories),
        "blocked_rate": 1 - len(counted) / len(valid),
        "total_trajectories": len(trajectories),
    }


def test_a_trajectory_file_is_plain_data_and_says_what_the_metrics_say(tmp_path: Path) -> None:
    run, out = a_run(tmp_path / "run"), tmp_path / "train_trajectories"
    out.mkdir()
    said = windrow.export(run, to="webgym", out=out)
    assert said.out == str(out / "train_trajectories.pt.iteration3")
    found = loaded(Path(said.out))
    assert (found["metadata"]["iteration"], found["metadata"]["split"]) == (3, "train")
    assert len(found["trajectories"]) == 7
    theirs: Any = report(run, iteration=3).plain()["webgym"]
    formula = by_formula(found["trajectories"])
    assert {name: round(value, 12) for name, value in formula.items()} == {
        name: round(value, 12) for name, value in theirs.items()
    }
    assert found["trajectories"][0][-1]["action"]["action"]["arguments"] == {"content": "drei €"}


def test_a_torch_file_and_json_lines_hold_the_same_and_the_same_run_gives_the_same_bytes(
    tmp_path: Path,
) -> None:
    run = a_run(tmp_path / "run")
    for name in ("a.pt", "b.pt", "c.jsonl"):
        windrow.export(run, to="webgym", out=tmp_path / name)
    lines = [json.loads(line) for line in (tmp_path / "c.jsonl").read_bytes().splitlines()]
    assert loaded(tmp_path / "a.pt")["trajectories"] == lines
    assert loaded(tmp_path / "a.pt")["metadata"] == json.loads(
        (tmp_path / "c.jsonl.metadata.json").read_bytes()
    )
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


def test_there_is_no_class_in_a_trajectory_file(tmp_path: Path) -> None:
    windrow.export(a_run(tmp_path / "run"), to="webgym", out=tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        [pickled] = [archive.read(name) for name in archive.namelist() if name.endswith("data.pkl")]
    assert b"windrow." not in pickled
    assert b"webgym" not in pickled
