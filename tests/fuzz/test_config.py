"""Configurations of any text: a checked configuration comes out, or one error that names the place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutations import fuzz, mutated_bytes, mutated_text, reshaped, taken_or_refused
from tests.support.run_builders import folder_in_memory
from windrow.config import load_config, parse_mcp, parse_tool
from windrow.errors import UsageError
from windrow.policies.scripted import scripted_policy

WHOLE = """\
tasks: {path: tasks.jsonl, limit: 5, map: {prompt: question}}
policy:
  model: m
  base_url: http://127.0.0.1:9/v1
  sampling: {temperature: 0.7, max_tokens: 64, stop: [x], extra: {a: [1]}}
env: {name: problem}
scorers: [exact, {name: number, weight: 0.5, settings: {tolerance: 0.1}}]
limits: &limits
  max_turns: 5
  call_timeout_s: 1.5
run: {samples: 4, concurrency: 8, out: "${HOME}/x"}
"""
SETTINGS = {
    "tasks": {"path": "tasks.jsonl", "limit": 5, "map": {"prompt": "question"}},
    "policy": {
        "model": "m",
        "base_url": "http://127.0.0.1:9/v1",
        "sampling": {"temperature": 0.7, "extra": {"a": [1]}},
    },
    "env": {"name": "problem", "settings": {"a": 1}},
    "scorers": ["exact", {"name": "number", "weight": 0.5}],
    "limits": {"max_turns": 5, "call_timeout_s": 1.5},
    "samples": 4,
    "extends": [],
}
SETS = ["limits.max_turns=5", "policy.sampling.stop=[a, b]", "samples=4", "scorers=[exact]", "env.name=problem",
        "policy.sampling.extra={a: {b: 1}}", "tasks.map.prompt=x", "env.settings.when=2024-01-01"]  # fmt: skip
SCRIPT = "replies:\n- {match: 'say (\\d+)', reply: '\\1'}\n- {reply: '42', finish: length}\n- {status: 503}\n"
ARGUMENTS = ["math:hypot", "my.module:name", "uvx server --flag 'a b'", "http://127.0.0.1:9/mcp", "exact=0.5"]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with folder_in_memory() as path:
        yield path


def checked(*files: Path, sets: tuple[str, ...] = ()) -> None:
    taken_or_refused(lambda: load_config(files, {}, sets))


@fuzz(500)
@given(data=mutated_bytes([WHOLE.encode()]))
def test_a_configuration_file_of_any_bytes_is_taken_or_refused(data: bytes, folder: Path) -> None:
    path = folder / "run.yaml"
    path.write_bytes(data)
    checked(path)


@fuzz(300)
@given(document=reshaped([SETTINGS]))
def test_settings_of_any_kind_are_taken_or_refused(document: object, folder: Path) -> None:
    path = folder / "kinds.yaml"
    path.write_text(json.dumps(document))  # most JSON is YAML
    checked(path)


@fuzz(500)
@given(assignments=st.lists(mutated_text(SETS), min_size=1, max_size=3))
def test_any_assignment_is_taken_or_refused(assignments: list[str]) -> None:
    checked(sets=tuple(assignments))


@fuzz(250)
@given(data=mutated_bytes([SCRIPT.encode()]))
def test_a_script_of_any_bytes_is_taken_or_refused(data: bytes, folder: Path) -> None:
    path = folder / "script.yaml"
    path.write_bytes(data)
    taken_or_refused(lambda: scripted_policy(str(path)))


@fuzz(250)
@given(text=mutated_text(ARGUMENTS))
def test_any_tool_server_or_scorer_is_taken_or_refused(text: str) -> None:
    taken_or_refused(lambda: parse_tool(text))
    taken_or_refused(lambda: parse_mcp(text))
    taken_or_refused(lambda: load_config((), {"scorers": [text], "tools": [text]}))


ODD = [
    "!!bool x", "!!timestamp x", "!!int ''", "!!float x", "!!binary é", "2024-13-45", "1" * 5000, "0b", "[" * 3000, "{" * 3000,
    '"\\uD83D"', "&a [*a]", "&a {x: *a}", "!!python/object:os.system x", "!!set {a}", "? [a, b]\n: c", "!!omap [a: 1]", ".inf",
    "2024-01-01", "0o9", "1:99", "<<: 3", "<<: {extends: 3}", "extends: 'a\\0b'", 'extends: "a\\0b"',
]  # fmt: skip


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize(
    "form", ["{}", "limits: {}", "env: {{name: problem, settings: {{x: {} }}}}", "policy:\n  model: {}"]
)
def test_every_kind_of_yaml_value_is_taken_or_refused(form: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(form.format(value))
    checked(path)
    checked(sets=(f"env.settings.x={value}", f"policy.model={value}"))


def bomb(depth: int) -> str:
    """A billion laughs: each list holds the one before ten times."""
    lines = ["a0: &a0 [lol, lol]"] + [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, depth)
    ]
    return "\n".join(lines)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text", [bomb(9), f"env: {{name: problem, settings: {{{bomb(9).replace(chr(10), ', ')}}}}}"]
)
def test_a_file_whose_aliases_multiply_is_refused_at_once(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match="alias"):
        load_config([path])
    with pytest.raises(UsageError, match="the value is not valid YAML"):
        load_config((), {}, [f"env.settings={{{bomb(9).replace(chr(10), ', ')}}}"])
