"""Escape sequences of a model, a server, a row or a run are shown, never obeyed: the real command on a real terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from tests.support.command_process import Project, prompt_of
from tests.support.pseudo_terminal import Terminal

pytestmark = pytest.mark.slow

# A new title, a cleared screen, a colour by C1, text that reads backwards, a line that is written over.
HOSTILE = "\x1b]0;OWNED\x07\x1b[2J\x1b[31m\x9b32m\u202eevil\u2066\x7f over\rwritten"
ROWS: list[Any] = [
    {"id": f"a{HOSTILE}", "prompt": f"right {HOSTILE}", "answer": HOSTILE},
    {"id": "b", "prompt": f"refused {HOSTILE}", "answer": "42"},
]
BAD_ROW = {"prompt": "x", "mcp_config": {HOSTILE: {}}}
# What the commands themselves send to a terminal: the live region's colours, and moves of its cursor.
OWN = re.compile(rb"\x1b\[(?:\?25[lh]|[0-9;]*m|[0-9]*[AK]|2K)|\r(?=\n|\x1b\[|$)|\r\r")
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def home(project: Callable[..., Project]) -> Project:
    def reply(body: dict[str, Any], n: int) -> Any:
        if prompt_of(body).startswith("refused"):
            return 400, {}, {"error": {"message": f"bad {HOSTILE}", "code": HOSTILE}}
        return f"I say {HOSTILE}"

    made = project(reply)
    made.tasks(ROWS)
    return made


def said(home: Project, *arguments: str) -> str:
    """What a command writes to a terminal that shows everything, without what Windrow itself draws there."""
    with closing(Terminal(*arguments, cwd=home.path, columns=200, PYTHONPATH=python_path())) as terminal:
        terminal.wait()
        assert b"OWNED" in terminal.raw or b"evil" in terminal.raw, terminal.raw
        raw = terminal.raw
    assert b"\x1b]" not in raw
    assert b"\x1b[2J" not in raw
    text = OWN.sub(b"", raw).decode()
    assert UNSAFE.findall(text) == []
    return text


def python_path() -> str:
    return os.environ.get("PYTHONPATH", "")


def test_no_command_passes_on_what_a_terminal_would_obey(home: Project) -> None:
    assert home.server is not None
    endpoint = ("--model", "stub", "--base-url", home.server.url, "--out", "run", "--retries", "0")
    home.tasks([BAD_ROW, {"prompt": "x"}], "bad.jsonl")
    checked = said(home, "tasks", "check", "bad.jsonl", "--skip-invalid")
    assert "mcp_config.\\u001b]0;OWNED\\u0007" in checked
    planned = said(home, "collect", "tasks.jsonl", *endpoint, "--dry-run")
    assert "first task: a\\u001b]0;OWNED" in planned
    collected = said(home, "collect", "tasks.jsonl", *endpoint)
    assert "bad \\u001b]0;OWNED" in collected
    shown = said(home, "show", "run")
    assert "\\u202eevil\\u2066" in shown
    transcripts = said(home, "show", "run", "")  # of all
    assert "I say \\u001b]0;OWNED" in transcripts
    assert "\\u009b32m" in said(home, "show", "run", "--json")


def test_the_json_stream_of_collect_holds_no_control_character(home: Project) -> None:
    home.collect("--retries", "0", "--json")
    out = (home.path / ".stdout.0").read_text(encoding="utf-8")
    assert "\\u202e" in out
    assert UNSAFE.findall(out) == []
