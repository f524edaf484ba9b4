"""The distribution on the package index: its name, its page and its extras."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from windrow.cli.doctor import EXTRAS

ROOT = Path(__file__).resolve().parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
README_HOOK = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]


def test_the_distribution_is_windrow_rl_and_brings_the_command_windrow() -> None:
    installed = distribution("windrow-rl")
    assert installed.metadata["Name"] == PYPROJECT["project"]["name"] == "windrow-rl"
    assert [script.name for script in installed.entry_points.select(group="console_scripts")] == ["windrow"]


def test_every_extra_that_doctor_names_can_be_installed() -> None:
    offered = set(distribution("windrow-rl").metadata.get_all("Provides-Extra") or [])
    assert offered == set(PYPROJECT["project"]["optional-dependencies"])
    assert set(EXTRAS) <= offered


def test_the_page_on_the_index_is_the_readme_with_absolute_links() -> None:
    assert "readme" in PYPROJECT["project"]["dynamic"]
    assert README_HOOK["fragments"] == [{"path": "README.md"}]
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", page)
    for substitution in README_HOOK["substitutions"]:
        page = re.sub(substitution["pattern"], substitution["replacement"], page)
    absolute_links = re.findall(r"\]\(([^)]+)\)", page)
    source = PYPROJECT["project"]["urls"]["Source"]
    assert len(absolute_links) == len(links) > 20
    assert f"]({source}/blob/main/docs/getting-started.md)" in page
    assert all(link.startswith("https://") for link in absolute_links)
    assert re.findall(r"!\[[^\]]*\]\((?!https://raw\.)", page) == []  # a page about the picture is no picture


def test_the_source_distribution_has_what_it_takes_to_build_and_test_it() -> None:
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"/README.md", "/src", "/tests", "/Makefile", "/constraints.txt"} <= set(included)
    assert [path for path in included if not (ROOT / path.lstrip("/")).exists()] == []
    assert PYPROJECT["project"]["license-files"] == ["LICENSE"]
