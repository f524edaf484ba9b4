"""Nothing reaches the terminal but through one module, and nothing of what that prints acts on it."""

from __future__ import annotations

import ast
import io
import json
import logging
import unicodedata
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.cli import output
from windrow.cli.main import main

SOURCE = Path(output.__file__).parents[1]
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\x7f\u202eevil\udc80"
# Each with its reason: the display draws with rich, JSON lines go to a descriptor, supervisors have processes of their own.
OWN_WAYS = {
    "cli/output.py": {"write", "buffer"},
    "cli/streams.py": {"buffer"},
    "cli/live_display.py": {"Console"},
    "services/supervisor.py": {"os.write"},
    "tools/mcp_supervisor.py": {"os.write"},
}


def ways_to_print(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a module could write to the standard streams: the line, and how."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("write", "writelines", "buffer"):
            if ast.unparse(node.value) in ("sys.stdout", "sys.stderr"):
                yield node.lineno, node.attr
            continue
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in ("print", "Console", "pprint", "logging.basicConfig", "logging.StreamHandler"):
            yield node.lineno, called
        if called.startswith("traceback.print_"):
            yield node.lineno, called
        if called == "os.write" and ast.unparse(node.args[0]) in ("1", "2"):
            yield node.lineno, called


def test_one_module_prints() -> None:
    found = [
        f"{name}:{line}: {way}"
        for path in sorted(SOURCE.rglob("*.py"))
        for name in [path.relative_to(SOURCE).as_posix()]
        if "templates" not in path.parts  # what `windrow init` writes is the user's
        for line, way in ways_to_print(ast.parse(path.read_text()))
        if way not in OWN_WAYS.get(name, ())
    ]
    assert found == [], "print with windrow.cli.output, which shows control characters as escapes"


def test_the_check_sees_each_way_to_print() -> None:
    ways = [
        "print('x')",
        "sys.stderr.write('x')",
        "sys.stdout.buffer.write(b'x')",
        "sys.stdout.writelines([])",
        "traceback.print_exc()",
        "Console().print('x')",
        "os.write(2, b'x')",
    ]
    assert [way for way in ways if not list(ways_to_print(ast.parse(way)))] == []


@given(st.text(st.characters(codec=None)))
def test_no_text_holds_a_control_character_once_it_is_visible(text: str) -> None:
    shown = output.visible(text)
    assert [c for c in shown if unicodedata.category(c) in ("Cc", "Cs") and c not in "\t\n"] == []
    assert not set(shown) & set(BIDI)
    assert shown.encode().decode() == shown  # it can be written


def test_ordinary_text_is_printed_as_it_is() -> None:
    text = "naïve 中文 🙂\tאבג\nZWJ 👩\u200d🔬 \\u001b"
    assert output.visible(text) == text
    assert output.visible(HOSTILE) == (r"\u001b]0;owned\u0007\u001b[2J\u000d\u009b31m\u007f\u202eevil\udc80")


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_means_the_same_and_holds_no_control_character(value: object) -> None:
    data = json.dumps(value, ensure_ascii=False).encode()
    shown = output.visible_json(data)
    assert json.loads(shown) == value
    assert output.visible(shown.decode()) == shown.decode()


def test_warnings_and_log_records_are_printed_as_everything_else_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "tok-0123456789")
    with output.printing():
        text = warnings.formatwarning(UserWarning(f"{HOSTILE} tok-0123456789"), UserWarning, "f.py", 1, "")
        record = logging.LogRecord("a", logging.ERROR, "f.py", 1, HOSTILE, None, None)
        assert logging.lastResort is not None
        logging.lastResort.handle(record)
    assert text == f"f.py:1: UserWarning: {output.visible(HOSTILE)} [redacted]\n"
    assert capsys.readouterr().err == output.visible(HOSTILE) + "\n"


def test_an_argument_and_an_error_are_shown_with_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ["show", "run", f"--{HOSTILE}"],
        ["show", f"{tmp_path}/{HOSTILE}"],
        ["tasks", "check", HOSTILE[:-1]],
    ):
        for debug in ((), ("--debug",)):
            assert main([*arguments, *debug]) != 0
            said = capsys.readouterr()
            assert "owned" in said.err
            assert output.visible(said.out + said.err) == said.out + said.err


def test_json_goes_to_a_stream_that_has_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    output.write_json({"a": "\x9b\u202e"})
    assert stream.getvalue() == '{"a":"\\u009b\\u202e"}\n'
