"""Integrations of other packages: an installed one is found by its entry point, and used as a bundled one is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from windrow.registry import GROUP

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "tests" / "support" / "example_integration"
RIDDLE = "What has keys but opens no door?"
SCRIPT = "replies: [{match: begins with, reply: It is a piano}, {reply: A jailer}]\n"


def install(site: Path, entry_points: dict[str, str] | None = None) -> None:
    """Lay the example out as an installer does: its package, and its metadata with the entry points."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    points = project["entry-points"][GROUP] if entry_points is None else entry_points
    shutil.copytree(EXAMPLE / "windrow_riddles", site / "windrow_riddles")
    metadata = site / f"windrow_riddles-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [f"[{GROUP}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def windrow(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(folder / "site"), str(ROOT / "src")]
    return subprocess.run(
        [sys.executable, "-m", "windrow", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "riddles.jsonl").write_text(json.dumps({"riddle": RIDDLE, "solution": "a piano"}) + "\n")
    (tmp_path / "script.yaml").write_text(SCRIPT)
    (tmp_path / "site").mkdir()
    return tmp_path


COLLECT = ("collect", "riddles.jsonl", "--model", "scripted:script.yaml", "--out", "run", "--quiet")


def test_its_rows_environment_scorer_and_export_are_used_by_name(folder: Path) -> None:
    install(folder / "site")
    done = windrow(folder, *COLLECT, "--scorer", "riddles", "--workers", "2")
    assert done.returncode == 0, done.stderr
    done = windrow(folder, "export", "run", "--to", "riddles", "-o", "out.jsonl")
    assert done.returncode == 0, done.stderr
    [line] = (folder / "out.jsonl").read_text().splitlines()
    assert json.loads(line) == {"riddle": RIDDLE, "reply": "It is a piano", "reward": 1.0}
    assert "riddles" in windrow(folder, "export", "--help").stdout


def test_without_it_nothing_knows_its_names(folder: Path) -> None:
    done = windrow(folder, *COLLECT, "--env", "riddles")
    assert done.returncode == 2
    assert "unknown env 'riddles'" in done.stderr


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("windrow_riddles.missing:INTEGRATION", "cannot be loaded: ModuleNotFoundError"),
        ("windrow_riddles.env:Riddles", "is not a windrow.registry.Integration"),
    ],
)
def test_one_that_cannot_be_used_is_named(folder: Path, target: str, problem: str) -> None:
    install(folder / "site", {"riddles": target})
    done = windrow(folder, *COLLECT)
    assert done.returncode == 2
    assert f"the installed integration 'riddles' ({target}) {problem}" in done.stderr
