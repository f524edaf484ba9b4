"""`windrow config show`, `extends`, and the example configurations."""

from __future__ import annotations

from pathlib import Path

import pytest

from windrow.cli.main import main
from windrow.config import load_config
from windrow.errors import UsageError

EXAMPLES = Path(__file__).parents[3] / "examples"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """key → (value, origin) of what was printed."""
    rows = {}
    for line in capsys.readouterr().out.splitlines():
        key, _, rest = line.partition(": ")
        value, _, origin = rest.rpartition(" # ")
        rows[key] = (value.strip(), origin)
    return rows


def test_a_file_is_laid_over_the_ones_it_extends(tmp_path: Path) -> None:
    write(tmp_path / "base" / "common.yaml", "samples: 2\npolicy: {sampling: {temperature: 0.5, top_p: 0.9}}")
    run = write(tmp_path / "run.yaml", "extends: base/common.yaml\npolicy: {sampling: {temperature: 1.0}}")
    loaded = load_config([run])
    assert loaded.run.samples == 2
    assert (loaded.run.policy.sampling.temperature, loaded.run.policy.sampling.top_p) == (1.0, 0.9)
    assert loaded.origins["samples"].endswith("common.yaml:1")


def test_an_error_in_an_extended_file_names_that_file(tmp_path: Path) -> None:
    write(tmp_path / "common.yaml", "limits:\n  max_turn: 3")
    run = write(tmp_path / "run.yaml", "extends: common.yaml")
    with pytest.raises(UsageError, match=r"common\.yaml:2.*max_turn.*did you mean 'max_turns'"):
        load_config([run])


def test_files_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "extends: b.yaml")
    write(tmp_path / "b.yaml", "extends: [a.yaml]")
    with pytest.raises(UsageError, match="circle"):
        load_config([tmp_path / "a.yaml"])


def test_extends_takes_files_only(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.yaml:1.*expected a file"):
        load_config([write(tmp_path / "a.yaml", "extends: {b: c}")])


def test_every_value_is_shown_with_its_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path / "run.yaml", "tasks: t.jsonl\npolicy:\n  model: m\nsamples: 4")
    assert main(["config", "show", "--config", str(run), "-k", "8", "--set", "limits.max_turns=3"]) == 0
    rows = shown(capsys)
    assert rows["tasks.path"] == ('"t.jsonl"', f"{run}:1")
    assert rows["policy.model"] == ('"m"', f"{run}:3")
    assert rows["policy.base_url"] == ("null", "default")
    assert rows["samples"] == ("8", "--samples")
    assert rows["limits.max_turns"] == ("3", "--set limits.max_turns")


def test_a_variable_is_shown_unexpanded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_URL", "http://secret-host/v1")
    run = write(tmp_path / "run.yaml", "policy: {base_url: '${MODEL_URL}'}")
    assert main(["config", "show", "--config", str(run)]) == 0
    assert shown(capsys)["policy.base_url"][0] == '"${MODEL_URL}"'


@pytest.mark.parametrize("name", ["rollout_train.yaml", "rollout_test.yaml"])
def test_the_example_configurations_load(name: str) -> None:
    loaded = load_config([EXAMPLES / name])
    assert loaded.run.tasks.split == name.removeprefix("rollout_").removesuffix(".yaml")
    assert loaded.run.policy.sampling.max_tokens == 96
