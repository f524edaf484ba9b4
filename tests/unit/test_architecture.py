"""The promises of the repository itself: what it must not contain, what an import must not cost."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Assembled, so that this file passes its own test.
HOME_PATHS = re.compile(
    r"(?<![\w.])/(?:" + "|".join(["home/[a-z]", "root/", "Users/[A-Za-z]", "work/[a-z]"]) + ")"
)
REGISTRY_HOSTS = re.compile(
    "|".join([r"files\.python" + "hosted", r"pypi" + r"\.org/simple", "--(?:extra-)?index" + "-url"])
)


def tracked_text() -> dict[str, str]:
    """Every file that git would commit, as text; a clone without git history has nothing to check."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return {str(path.relative_to(ROOT)): path.read_text(errors="replace") for path in paths if path.is_file()}


@pytest.mark.parametrize("pattern", [HOME_PATHS, REGISTRY_HOSTS], ids=["machine path", "registry host"])
def test_no_file_names_the_machine_it_was_written_on(pattern: re.Pattern[str]) -> None:
    found = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in tracked_text().items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_import_windrow_is_light() -> None:
    heavy = ["aiohttp", "yaml", "uvloop", "sqlite3", "multiprocessing"]
    code = f"import sys, json, windrow; print(json.dumps([m for m in {heavy} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_records_imports_nothing_of_ours() -> None:
    tree = ast.parse((ROOT / "src/windrow/records.py").read_text())
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported += [
        "." * node.level + (node.module or "") for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
    ]
    assert [name for name in imported if name.startswith((".", "windrow"))] == []


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for extra in project["optional-dependencies"].values() for name in extra]
    wanted = project["dependencies"] + [name for name in extras if not name.startswith("windrow-rl[")]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+!-]+", line)] == []
    pinned = {normal(line.split("==")[0]) for line in lines}
    assert [name for name in wanted if normal(re.split(r"[^\w.-]", name)[0]) not in pinned] == []


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


ROOMS = ROOT / "src" / "windrow"
CHANGES = {
    "a new scorer",
    "a new dialect of a model server",
    "a new flag",
    "a new row format",
    "a new export",
    "another retry rule",
    "a new field of the log",
    "a new tracker",
    "a new limit",
    "a new integration",
}


def test_the_architecture_says_where_ten_changes_go_and_the_paths_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Where does a change go?")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| a")]
    paths = {change: re.findall(r"`([^`]+)`", cell) for change, cell in rows}
    assert set(paths) == CHANGES
    assert all(paths.values())
    assert [path for named in paths.values() for path in named if not (ROOT / path).exists()] == []


def test_every_room_is_in_the_table_of_rooms_and_says_what_belongs_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## The rooms")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z]+)(?:/|\.py)`", table.partition("| --- |")[2]))
    modules = {path.stem for path in ROOMS.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert named >= modules - {"__init__", "__main__", "__pycache__", "version"}
    packages = [path for path in ROOMS.rglob("__init__.py") if path.parent != ROOMS]
    silent = [path for path in packages if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]
    assert silent == []


def test_no_text_names_a_module_of_another_room() -> None:
    """A module that is imported by its name would pass the layers unseen. `windrow/__init__.py` lies outside of them."""
    named = re.compile(r"""["']windrow\.(\w+)\.[\w.]*(?::\w+)?["']""")
    strangers = [
        f"{path.relative_to(ROOMS)}: {match[0]}"
        for path in ROOMS.rglob("*.py")
        if path.parent != ROOMS
        for match in named.finditer(path.read_text(encoding="utf-8"))
        if match[1] != path.relative_to(ROOMS).parts[0]
    ]
    assert strangers == []
