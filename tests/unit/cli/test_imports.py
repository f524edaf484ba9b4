"""What `import windrow` gives and what starting the command costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.raw_server import completion, http, serving, wired
from tests.support.run_builders import make_rollout, write_run

pytestmark = pytest.mark.slow

HEAVY = ["aiohttp", "yaml", "uvloop", "sqlite3", "multiprocessing", "jinja2", "rich"]


def fresh(code: str) -> Any:
    """What the code prints as JSON in a new interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def loaded_after(code: str, modules: list[str] = HEAVY) -> list[str]:
    found = fresh(
        f"{code}\nimport sys, json; print(); print(json.dumps([m for m in {modules} if m in sys.modules]))"
    )
    assert isinstance(found, list)
    return found


@pytest.mark.slow
def test_names_of_the_package_stay_what_they_are_whatever_is_imported() -> None:
    """A submodule that is imported later must not take the place of a function of the same name."""
    code = """
import json, pkgutil, importlib, windrow
first = {name: getattr(windrow, name) for name in windrow.__all__}
for module in pkgutil.walk_packages(windrow.__path__, "windrow."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as missing:  # a class of another package's, which is not installed here
        assert missing.name == "tinker", missing
print(json.dumps([name for name in windrow.__all__ if getattr(windrow, name) is not first[name]]))
"""
    assert fresh(code) == []


def test_the_library_is_these_functions_and_the_classes_that_a_user_implements() -> None:
    assert callable(windrow.collect)
    assert windrow.collect is windrow.collect
    assert callable(windrow.load)
    assert callable(windrow.run_examples)
    implemented = (
        "Agent Env Message Observation Policy Rollout RolloutGroup Score Step Task Tool WindrowError"
    )
    assert all(isinstance(getattr(windrow, name), type) for name in implemented.split())
    with pytest.raises(AttributeError, match="module 'windrow' has no attribute 'colect'"):
        windrow.colect  # noqa: B018


@pytest.mark.parametrize(
    "command", [["--version"], ["schema"], ["show", "none"], ["ls", "none"]], ids=" ".join
)
def test_a_command_that_sends_nothing_does_not_load_the_http_client(command: list[str]) -> None:
    loaded = loaded_after(f"from windrow.cli.main import main\nmain({command!r})")
    assert "aiohttp" not in loaded


def test_a_call_that_has_nothing_to_run_does_not_load_the_http_client(tmp_path: Path) -> None:
    """It makes the policy, whose identity the run has, and asks nobody."""
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "1 + 1?", "answer": "2"}\n')
    command = [
        "collect",
        str(tmp_path / "tasks.jsonl"),
        "--model",
        "m",
        "--base-url",
        "http://127.0.0.1:9/v1",
    ]
    code = f"from windrow.cli.main import main\nassert main({[*command, '--dry-run']!r}) == 0"
    assert "aiohttp" not in loaded_after(code)


def test_a_rollout_without_a_proxy_is_collected_without_loading_aiohttp(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "1 + 1?", "answer": "2"}\n')
    words = [
        "collect",
        str(tmp_path / "tasks.jsonl"),
        "--model",
        "m",
        "--out",
        str(tmp_path / "run"),
        "--quiet",
    ]
    with wired(serving(http(200, completion("2")), model="m")) as server:
        code = f"from windrow.cli.main import main\nassert main({[*words, '--base-url', server.url]!r}) == 0"
        assert "aiohttp" not in loaded_after(code)


def test_printing_the_version_loads_nothing_heavy() -> None:
    assert loaded_after("from windrow.cli.main import main\nmain(['--version'])") == []


def test_the_list_of_commands_is_printed_without_loading_any_of_them() -> None:
    loaded = loaded_after(
        "from windrow.cli.main import main\nmain([])",
        [*HEAVY, "asyncio", "windrow.cli.collect", "windrow.store"],
    )
    assert loaded == []


def test_the_numbers_of_a_run_are_read_without_what_collects_them(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_rollout("a")])
    parts = ["windrow.engine", "windrow.envs", "windrow.policies", "windrow.collecting.collection"]
    for command in ("stats", "show"):
        loaded = loaded_after(f"from windrow.cli.main import main\nmain([{command!r}, {str(run)!r}])", parts)
        assert loaded == []


def test_version_is_the_packages() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "windrow", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, f"windrow {windrow.__version__}\n")
