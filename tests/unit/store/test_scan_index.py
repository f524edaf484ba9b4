"""What a pass over the rows has found is taken again for the same rows, and for no others."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_server import write_jsonl
from tests.support.task_loading import refusal
from windrow.collecting.opening import open_collection
from windrow.collecting.resolve import resolve
from windrow.config import load_config
from windrow.engine.components import Overrides
from windrow.envs.problem import Problem
from windrow.policies import Policy
from windrow.store import scan_index

pytestmark = pytest.mark.usefixtures("indexed")

ROWS = [{"id": f"t{n}", "prompt": f"say {n}", "answer": str(n)} for n in range(4)]


class Picky(Problem):
    """Refuses rows by something that is not in them."""

    refused = ""

    @classmethod
    def check_row(cls, row: Mapping[str, Any]) -> None:
        if row["prompt"] == cls.refused:
            raise ValueError("not this one")


class Plain(Problem):
    """Checks rows as `problem` does."""


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_index, "MIN_ROWS", 0)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for each pass over rows that was made."""
    made: list[str] = []

    def scan(rows: Any, **options: Any) -> Any:
        made.append(rows.name)
        return whole_scan(rows, **options)

    from windrow.collecting import rows as rows_module

    whole_scan = rows_module.scan
    monkeypatch.setattr(rows_module, "scan", scan)
    return made


class Sampled(Policy):
    accepts = frozenset({"temperature"})


def opened(folder: Path, **options: Any) -> dict[str, Any]:
    """All that a call goes by of its tasks; it finds out what there is to do, and ends."""
    options = {"tasks": str(folder / "tasks.jsonl"), "out": str(folder / "run"), **options}
    collection = open_collection(resolve(load_config((), options), Overrides(policy=Sampled())))
    try:
        found, source = collection.resolved, collection.resolved.source
        return {
            "tasks": [found.tasks.task(n) for n in range(len(found.tasks))],
            "kept": [collection.plan.tasks.task(n) for n in range(len(found.tasks))],
            "identities": [
                (found.tasks.source(n), *found.tasks.identity(n)) for n in range(len(found.tasks))
            ],
            "rows": (source.row_sampling, source.row_limits, source.row_agents, source.invalid),
            "grading": found.grading,
            "notes": found.notes,
            "behaviour": found.behaviour,
            "called": (found.matches, found.agent_names),
            "warnings": collection.warnings,
        }
    finally:
        collection.close()


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        [*ROWS, *({**row, "id": None} for row in ROWS[:2]), {"prompt": "say 0", "id": None, "answer": "0"}],
        [{"prompt": "no answer"}, {"prompt": "none either"}],
        [{**ROWS[0], "sampling": {"temperature": 0.5}}, {**ROWS[1], "env": "problem", "tags": ["a"]}],
    ],
)
@pytest.mark.parametrize("options", [{}, {"limit": 2}, {"shuffle": 3, "split": "train"}])
def test_what_was_kept_is_what_another_pass_would_find(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], passes: list[str]
) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", rows)
    first = opened(tmp_path, **options)
    assert opened(tmp_path, **options) == first
    assert len(passes) == 1
    shutil.rmtree(tmp_path / "run" / "index")
    assert opened(tmp_path, **options) == first
    assert len(passes) == 2


def test_a_larger_limit_or_more_samples_need_no_other_pass(tmp_path: Path, passes: list[str]) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    opened(tmp_path, limit=1)
    assert len(opened(tmp_path, samples=3)["tasks"]) == 4
    assert len(passes) == 1


def test_a_file_that_is_only_younger_is_not_read_again(tmp_path: Path, passes: list[str]) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    opened(tmp_path)
    os.utime(tmp_path / "tasks.jsonl")
    opened(tmp_path)
    assert len(passes) == 1


def test_a_row_that_was_changed_is_noticed_though_size_and_time_are_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    write_jsonl(path, ROWS)
    before = path.stat()
    opened(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"say 1", b"say 9"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = opened(tmp_path)
    assert [task["prompt"] for task in found["kept"]] == ["say 0", "say 9", "say 2", "say 3"]
    assert found["identities"] == opened(tmp_path, out=str(tmp_path / "fresh"))["identities"]


@pytest.mark.parametrize(
    "changed",
    [
        {"map": {"prompt": "id"}},
        {"split": "test"},
        {"source": "other"},
        {"env": "prompt"},
        {"env": "tests.unit.store.test_scan_index:Plain"},
    ],
)
def test_other_settings_are_another_pass(tmp_path: Path, changed: dict[str, Any], passes: list[str]) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    opened(tmp_path)
    fresh = opened(tmp_path, out=str(tmp_path / "fresh"), **changed)
    for name in ("source.index", "tasks.index"):
        shutil.copy(tmp_path / "run" / "index" / name, tmp_path / "fresh" / "index" / name)
    assert opened(tmp_path, out=str(tmp_path / "fresh"), **changed) == fresh
    assert len(passes) == 3


def test_rows_that_other_code_checks_are_checked_by_every_call(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    options = {
        "env": "tests.unit.store.test_scan_index:Picky",
        "scorers": ["exact"],
        "out": str(tmp_path / "run"),
    }
    opened(tmp_path, **options)
    Picky.refused = "say 2"
    try:
        assert "tasks.jsonl:3: not this one" in refusal(tmp_path / "tasks.jsonl", **options)
    finally:
        Picky.refused = ""


def test_an_environment_of_the_users_that_checks_as_ours_do_needs_no_other_pass(
    tmp_path: Path, passes: list[str]
) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    for _ in range(2):
        found = opened(tmp_path, env="tests.unit.store.test_scan_index:Plain", scorers=["exact"])
        assert len(found["tasks"]) == 4
    assert len(passes) == 1


def test_an_environment_that_takes_no_prompts_any_more_refuses_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    (tmp_path / "prompt.yaml").write_text("user: '{{ prompt }}'\n")
    options = {
        "env": "tests.unit.store.test_scan_index:Plain",
        "scorers": ["exact"],
        "out": str(tmp_path / "run"),
        "prompt": str(tmp_path / "prompt.yaml"),
    }
    opened(tmp_path, **options)
    monkeypatch.setattr(Plain, "takes_prompt", False)
    assert "would ignore --prompt" in refusal(tmp_path / "tasks.jsonl", **options)


@pytest.mark.parametrize("named", [{"env": "prompt"}, {"agent": "chat"}])
def test_rows_that_name_who_plays_them_are_read_by_every_call(
    tmp_path: Path, named: dict[str, Any], passes: list[str]
) -> None:
    """A name in a run directory is never imported."""
    write_jsonl(tmp_path / "tasks.jsonl", [ROWS[0], {**ROWS[1], **named}])
    first = opened(tmp_path)
    assert opened(tmp_path) == first
    assert len(passes) == 2


def test_invalid_rows_are_reported_by_every_call(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(json.dumps(ROWS[0]) + "\n{\n")
    for _ in range(2):
        assert len(opened(tmp_path, skip_invalid=True)["rows"][-1]) == 1
    assert "tasks.jsonl:2" in refusal(tmp_path / "tasks.jsonl", out=str(tmp_path / "run"))


def test_rows_without_answers_are_told_by_every_call_that_needs_them(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": f"say {n}"} for n in range(30)])
    opened(tmp_path)
    options = {"scorers": ["exact"]}
    expected = refusal(tmp_path / "tasks.jsonl", out=str(tmp_path / "elsewhere"), **options)
    assert "30 invalid rows" in expected
    assert "… and 10 more" in expected
    assert refusal(tmp_path / "tasks.jsonl", out=str(tmp_path / "run"), **options) == expected


def test_a_run_that_was_given_no_name_keeps_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    for _ in range(2):
        opened(tmp_path, out=None)
    assert len(passes) == 1


def test_a_line_of_tasks_jsonl_that_was_damaged_is_reported_and_its_task_written_again(
    tmp_path: Path,
) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    opened(tmp_path)
    kept = tmp_path / "run" / "tasks.jsonl"
    before = kept.stat()
    kept.write_bytes(kept.read_bytes().replace(b'{"key":"t1"', b'["key":"t1"', 1))
    os.utime(kept, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        found = opened(tmp_path)
        assert [task.key for task in found["kept"]] == ["t0", "t1", "t2", "t3"]
        assert any("tasks.jsonl:2 is not a task" in message for message in found["warnings"])
    assert len(kept.read_bytes().splitlines()) == 5
