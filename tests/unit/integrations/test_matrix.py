"""docs/coming-from/README.md: the matrix is what its data says, and every row of it has a test that is there and runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from tests.support.doc_pages import ROOT

FOLDER = ROOT / "docs" / "coming-from"
GENERATE = ROOT / "docs" / "generate_matrix.py"
ROWS = tomllib.loads((FOLDER / "matrix.toml").read_text(encoding="utf-8"))["row"]
PINS = [ROOT / "constraints.txt", *(ROOT / "tests" / "interop").glob("*.txt")]


def test_the_matrix_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(GENERATE), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_row_that_the_page_does_not_have_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "coming-from"
    folder.mkdir(parents=True)
    script = folder.parent / GENERATE.name
    script.write_text(GENERATE.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "constraints.txt").write_text(
        "\n".join(file.read_text(encoding="utf-8") for file in PINS), encoding="utf-8"
    )
    data = (FOLDER / "matrix.toml").read_text(encoding="utf-8")
    (folder / "README.md").write_text((FOLDER / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "matrix.toml").write_text(data.replace('way = "drive"', 'way = "out"', 1), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert (done.returncode, "make docs" in done.stdout) == (1, True)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['system']} {row['way']}")
def test_every_row_names_a_test_that_runs_and_what_it_is_held_against(row: dict[str, str]) -> None:
    file, _, test = row["test"].partition("::")
    found = [
        node
        for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == test
    ]
    assert found, f"{row['test']} is not there"
    assert not [mark for node in found for mark in node.decorator_list if "skip" in ast.unparse(mark)]
    assert ("package" in row) != ("version" in row), "a real package, or the version of a documentation"
    assert set(row) == {"system", "page", "way", "what", "test", *({"package", "version"} & set(row))}


def test_an_interop_environment_that_is_named_is_made() -> None:
    """A test under tests/interop runs only if the Makefile has its environment."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    made = re.search(r"^INTEROP := (.*)$", makefile, re.M)
    assert made
    named = {row["test"].partition("::")[0] for row in ROWS if row["test"].startswith("tests/interop/")}
    own = {f"tests/interop/test_{name}.py" for name in made[1].split()}
    shared = {
        file for name in made[1].split() for file in re.findall(rf"^TESTS_{name} := (\S+)", makefile, re.M)
    }
    assert named <= own | shared


def test_the_rows_of_a_system_stand_together() -> None:
    blocks = Counter(system for system, _ in groupby(row["system"] for row in ROWS))
    assert [system for system, count in blocks.items() if count > 1] == []
