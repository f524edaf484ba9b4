"""Configurations of NeMo Gym: the data sets that they name are collected without being typed again."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import windrow
from tests.support.nemo_gym_files import write
from tests.support.nemo_gym_servers import Gym, answer, prompt_of, row
from windrow.cli.main import main
from windrow.config import load_config
from windrow.errors import UsageError


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of theirs: two environments, and a benchmark that takes over one of them."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for name in ("train", "other", "bench"):
        write(Path("data") / f"{name}.jsonl", [row(f"{name} {n}", agent=None) for n in range(2)])
    _config("math.yaml", math_agent=_agent(("train", "train", 2), ("example", "example", None)))
    _config("code.yaml", code_agent=_agent(("other", "train", 2)))
    bench = {"_inherit_from": "math_agent", **_agent(("bench", "benchmark", 3))}
    Path("benchmarks").mkdir()
    _config("benchmarks/bench.yaml", config_paths=["math.yaml"], bench_agent=bench)
    return tmp_path


def _agent(*datasets: tuple[str, str, int | None]) -> dict[str, object]:
    listed = [
        {"name": name, "type": kind, "jsonl_fpath": f"data/{name}.jsonl", "num_repeats": repeats}
        for name, kind, repeats in datasets
    ]
    own = {"entrypoint": "app.py", "model_server": {"name": "policy_model"}, "datasets": listed}
    return {"responses_api_agents": {"simple_agent": own}}


def _config(name: str, **sections: object) -> None:
    Path(name).write_text(yaml.safe_dump(sections))


def test_each_data_set_of_the_given_configurations_is_played_by_its_agent() -> None:
    plays = dict.fromkeys(("math_agent", "code_agent"), lambda sent, n: answer(sent, prompt_of(sent)))
    with Gym(plays) as gym:
        flags = [
            "--config",
            "math.yaml",
            "--config",
            "code.yaml",
            "--split",
            "train",
            "--out",
            "run",
            "--quiet",
        ]
        assert main(["collect", *flags, "--agent", f"nemo-gym:{gym.head}"]) == 0
    rollouts = list(windrow.load("run"))
    assert sorted((one.agent, one.task.source, one.reply, one.sample) for one in rollouts) == sorted(
        (agent, source, f"{source} {n}", sample)
        for agent, source in (("math_agent", "train"), ("code_agent", "other"))
        for n in range(2)
        for sample in range(2)
    )


def test_a_benchmark_takes_the_place_of_what_it_inherits_from() -> None:
    run = load_config(["benchmarks/bench.yaml"]).run
    assert [
        (one.source, one.split, one.agent, one.num_repeats, Path(one.path).name) for one in run.datasets
    ] == [("bench", "benchmark", "bench_agent", 3, "bench.jsonl")]


def test_files_are_found_from_a_folder_above_the_configuration(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository.parent)
    [dataset] = load_config([repository / "benchmarks" / "bench.yaml"]).run.datasets
    assert Path(dataset.path) == repository / "data" / "bench.jsonl"


def test_the_head_server_that_a_configuration_names_is_the_agent_unless_another_is_given() -> None:
    _config(
        "own.yaml", head_server={"host": "127.0.0.1", "port": 11999}, math_agent=_agent(("train", "train", 1))
    )
    assert load_config(["own.yaml"]).run.agent.settings == {"head": "http://127.0.0.1:11999"}
    given = load_config(["own.yaml"], {"agent": "nemo-gym:http://127.0.0.1:5"})
    assert given.run.agent.settings["head"] == "http://127.0.0.1:5"


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"config_paths": ["gone.yaml"]}, "there is no file 'gone.yaml'"),
        ({"a": {"_inherit_from": "b"}}, "a inherits from 'b', which is not there"),
        ({"a": {"_inherit_from": "b"}, "b": {"_inherit_from": "a"}}, "inherits from itself"),
        ({"config_paths": "math.yaml"}, "config_paths must be a list"),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_refused(
    sections: dict[str, object], problem: str
) -> None:
    _config("bad.yaml", **sections)
    with pytest.raises(UsageError, match=problem):
        load_config(["bad.yaml"])


def test_a_misspelled_setting_of_ours_is_refused_as_before() -> None:
    _config("ours.yaml", sampels=4)
    with pytest.raises(UsageError, match="sampels"):
        load_config(["ours.yaml"])
