"""Hugging Face data sets as task sources, on directories: no test here asks the hub.

`datasets` reads where its cache is when it is imported, so the commands run in a process of their own: one for all of
a test's, since the import takes its time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.model_server import write_jsonl

pytestmark = pytest.mark.slow

RUN = """
import contextlib, io, json, sys
from windrow.cli.main import main
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(command)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
SAVE = """
from datasets import Dataset, DatasetDict, disable_progress_bars, enable_progress_bars
disable_progress_bars()
rows = {"prompt": ["2 + 2?", "3 + 3?"], "answer": [4, 6]}
DatasetDict({"train": Dataset.from_dict(rows), "test": Dataset.from_dict(rows)}).save_to_disk("saved")
Dataset.from_dict({"prompt": ["a"], "image": [b"raw"]}).save_to_disk("images")
enable_progress_bars()
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run commands one after another in `tmp_path`: for each its exit code, output and errors."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))

    def run(*commands: list[str], before: str = "") -> list[Any]:
        arguments = [sys.executable, "-c", before + RUN, json.dumps(commands)]
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def test_a_directory_is_named_by_itself_and_the_split_is_part_of_the_identity(
    commands, tmp_path: Path
) -> None:
    data = tmp_path / "here" / "sums"
    data.mkdir(parents=True)
    four, six = {"prompt": "2 + 2?", "answer": 4}, {"prompt": "3 + 3?", "answer": 6}
    write_jsonl(data / "train.jsonl", [four, six])
    write_jsonl(data / "test.jsonl", [four])
    (tmp_path / "script.yaml").write_text("replies:\n- reply: '4'\n")
    collect = ["collect", "hf:./here/sums", "--model", "scripted:script.yaml"]
    done = commands(*([*collect, "--split", split, "--out", split] for split in ("train", "test")))
    assert [code for code, _, _ in done] == [0, 0], done
    train, test = (list(windrow.load(tmp_path / split)) for split in ("train", "test"))
    assert [rollout.task.data for rollout in train] == [four, six]
    assert [rollout.reward for rollout in train] == [1.0, 0.0]
    assert {(rollout.task.source, rollout.task.split) for rollout in train} == {("sums", "train")}
    assert {(rollout.task.source, rollout.task.split) for rollout in test} == {("sums", "test")}
    assert train[0].task.digest == test[0].task.digest
    assert train[0].id != test[0].id


def test_a_saved_data_set_is_read_and_what_it_lacks_is_said(commands) -> None:
    check = ["tasks", "check"]
    read, no_split, no_config, images = commands(
        [*check, "hf:./saved", "--split", "test"],
        [*check, "hf:saved", "--split", "tst"],
        [*check, "hf:saved:main", "--split", "test"],
        [*check, "hf:images", "--split", "train"],
        before=SAVE,
    )
    assert (read[0], read[1].splitlines()[0]) == (0, "hf:./saved: 2 valid tasks")
    assert no_split[0] == no_config[0] == images[0] == 2
    assert "hf:saved: no split 'tst'; did you mean 'test'? (known: train, test)" in no_split[2]
    assert "a saved data set has no configurations, so :main would be ignored" in no_config[2]
    assert "hf:images: column 'image' holds bytes (binary), which a task row cannot" in images[2]


def test_what_the_library_cannot_load_is_one_line_with_the_cause(commands, tmp_path: Path) -> None:
    (tmp_path / "flawed").mkdir()
    (tmp_path / "flawed" / "test.csv").write_text('prompt,answer\n"a,1\n')
    check = ["tasks", "check"]
    offline, split, flawed = commands(
        [*check, "hf:owner/none:main@v1", "--split", "test"],
        [*check, "hf:flawed", "--split", "train"],
        [*check, "hf:flawed", "--split", "test"],
    )
    assert offline[2].startswith(
        "windrow: cannot load hf:owner/none:main@v1, split 'test': ConnectionError: "
    )
    assert "cannot load hf:flawed, split 'train': " in split[2]
    assert "EOF inside string" in flawed[2]
    for code, out, err in (offline, split, flawed):
        assert (code, out, len(err.splitlines())) == (2, "", 1)
