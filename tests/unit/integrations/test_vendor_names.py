"""The core names no system that has a folder in integrations/, and a run that names none imports none."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from windrow.integrations import BUNDLED
from windrow.registry import Integration, load

SOURCE = Path(__file__).parents[3] / "src" / "windrow"
# A word is also a part of an identifier: `_as_webgym`, `TrlExport`, `nemo-gym`.
NAMES = re.compile(
    r"(?<![a-z])(hud|nemo|tinker|webgym|reasoning[-_ ]?gym|gymnasium|textarena|miniwob|trl)(?![a-z])", re.I
)
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def vendor_names(text: str) -> list[str]:
    return NAMES.findall(text) + NAMES.findall(CAMEL.sub("_", text))


def test_the_pattern_finds_names_in_words_and_identifiers() -> None:
    for text in (
        "NeMo Gym's rows",
        "_as_webgym",
        "WebGym",
        "TRL's",
        "nemo-gym:URL",
        "HudRows",
        "MiniWoB",
        "toTrl",
    ):
        assert vendor_names(text), text
    assert vendor_names("control hudson tinkering a shud") == []


def test_the_core_names_none_of_the_systems() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*")):
        if path.is_dir() or "integrations" in path.relative_to(SOURCE).parts or path.suffix == ".pyc":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found += [f"{path.relative_to(SOURCE)}:{number}: {name}" for name in vendor_names(line)]
    assert found == []


def test_every_folder_is_a_bundled_integration() -> None:
    folders = {path.parent.name for path in (SOURCE / "integrations").glob("*/__init__.py")}
    assert folders == {integration.name.replace("-", "_") for integration in BUNDLED}


@pytest.mark.parametrize("integration", BUNDLED, ids=lambda integration: integration.name)
def test_everything_that_is_declared_exists(integration: Integration) -> None:
    not_targets = ("agent_envs", "extras")
    for field, value in integration._asdict().items():
        if isinstance(value, dict) and field not in not_targets:
            for target in value.values():
                assert load(field, target) is not None


def test_a_plain_run_imports_only_their_declarations(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "1 + 1?", "answer": "2"}\n')
    (tmp_path / "script.yaml").write_text("replies: [{reply: '2'}]\n")
    code = """
import json, sys
from windrow.cli.main import main
assert main(["collect", "tasks.jsonl", "--model", "scripted:script.yaml", "--scorer", "exact", "--out", "run", "--quiet"]) == 0
print(json.dumps([name for name in sys.modules if name.startswith("windrow.integrations.")]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    assert imported == {
        f"windrow.integrations.{integration.name.replace('-', '_')}" for integration in BUNDLED
    }


def test_importing_the_package_imports_no_integration() -> None:
    code = "import sys, windrow; print([name for name in sys.modules if name.startswith('windrow.integ')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
