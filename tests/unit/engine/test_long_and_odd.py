"""What is far too long, or from another time, costs what it must and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from windrow.config import load_config
from windrow.errors import MAX_MESSAGE_CHARS, UsageError, error_record
from windrow.grading.answers import choice, number
from windrow.store.reader import RunReader


def test_an_exception_that_quotes_a_document_is_kept_with_its_beginning_and_end() -> None:
    record = error_record(ValueError("begins " + "x" * 5_000_000 + " ends"), owner="env", phase="env")
    assert record.traceback is not None
    for text in (record.message, record.traceback):
        assert len(text) < MAX_MESSAGE_CHARS + 100
        assert "characters left out" in text
    assert record.message.startswith("begins ")
    assert record.message.endswith(" ends")


def test_a_reply_of_megabytes_is_judged_by_what_it_settles_on() -> None:
    assert number("7 or 8 or 9, " * 500_000 + "so 42", 42, {})[:2] == (True, True)
    assert choice("(A) or (B), " * 500_000 + "the answer is C", "C", {})[:2] == (True, True)


async def test_a_line_of_a_newer_schema_is_left_out_and_reported(tmp_path: Path) -> None:
    rows = [{"prompt": "2 + 2?", "answer": "ok"}]
    await collected(rows, policy=answering("ok"), out=str(tmp_path / "run"), samples=2)
    log = tmp_path / "run" / "rollouts.jsonl"
    first, second = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(first.replace(b'{"v":1,', b'{"v":9,') + second)
    reader = RunReader(tmp_path / "run")
    assert len(list(reader.finals())) == 1
    (bad,) = reader.bad_lines
    assert (bad.number, "schema 9" in bad.problem) == (1, True)
    with pytest.warns(UserWarning, match="schema 9"):
        assert len(list(windrow.load(tmp_path / "run"))) == 1


def test_a_configuration_that_holds_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("env: &e {name: problem, settings: {again: *e}}", encoding="utf-8")
    with pytest.raises(UsageError, match="holds itself"):
        load_config([path])
