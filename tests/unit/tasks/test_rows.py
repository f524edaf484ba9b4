"""What is a task file, what is not, and what is said of it: form, encoding, size, JSON itself."""

from __future__ import annotations

import io
import os
import socket
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.task_reading import refusal, scanned, tasks_in
from windrow.cli.main import main
from windrow.errors import UsageError
from windrow.tasks.rows import MAX_ROW_BYTES, spool_rows

ROWS = b'{"prompt": "a", "answer": 1}\n{"prompt": "b", "answer": 2}\n'


@pytest.fixture
def file(tmp_path: Path):
    def write(data: bytes | str, name: str = "tasks.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return write


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(ROWS, id="JSON lines"),
        pytest.param(ROWS.rstrip(), id="no newline at the end"),
        pytest.param(ROWS.replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(b"\xef\xbb\xbf" + ROWS, id="BOM"),
        pytest.param(b"\n\n  \n" + ROWS.replace(b"\n", b"\n\n\t\n"), id="blank lines"),
        pytest.param(b"\n" * 5000 + ROWS, id="five thousand blank lines first"),
        pytest.param(b"[" + b",".join(ROWS.splitlines()) + b"]", id="JSON array"),
        pytest.param(b" [\r\n" + b"\r\n,\n".join(ROWS.splitlines()) + b"\n]\n", id="JSON array over lines"),
        pytest.param(b"\xef\xbb\xbf[" + b",".join(ROWS.splitlines()) + b"]", id="JSON array with a BOM"),
        pytest.param(b" " * 5000 + b"[" + b",".join(ROWS.splitlines()) + b"]", id="JSON array after blanks"),
    ],
)
def test_every_form_of_a_file_gives_the_same_tasks(file, data: bytes) -> None:
    tasks = tasks_in(file(data))
    assert [(task.index, task.data) for task in tasks] == [
        (0, {"prompt": "a", "answer": 1}),
        (1, {"prompt": "b", "answer": 2}),
    ]
    assert [task.digest for task in tasks] == [task.digest for task in tasks_in(file(ROWS, "plain.jsonl"))]


def test_standard_input_is_read_to_its_end(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ROWS)))
    assert main(["tasks", "check", "-"]) == 0
    assert "2 valid tasks" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"prompt": 1}')))
    assert main(["tasks", "check", "-"]) == 2
    assert "<stdin>:1: 'prompt' must be a string" in capsys.readouterr().err


def test_a_closed_standard_input_is_an_error(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["tasks", "check", "-"]) == 2
    assert "standard input is closed" in capsys.readouterr().err


def test_a_pipe_given_as_a_file_is_read(tmp_path: Path) -> None:
    """`windrow collect <(zcat tasks.gz)`: a pipe cannot be read twice, so it is kept aside."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(ROWS), daemon=True)
    writer.start()
    assert [task["prompt"] for task in tasks_in(pipe)] == ["a", "b"]
    writer.join(10)


def test_what_is_not_a_task_file_is_named_in_plain_words(file, tmp_path: Path) -> None:
    assert "tasks.jsonl is empty" in refusal(file(b""))
    assert "tasks.jsonl is empty" in refusal(file(b"\xef\xbb\xbf\n \r\n" + b"\n" * 9000))
    assert "empty array" in refusal(file(b"[ ]", "tasks.json"))
    assert "UTF-16; save it as UTF-8" in refusal(file(ROWS.decode().encode("utf-16")))
    assert "binary file" in refusal(file(ROWS.decode().encode("utf-16-le")))
    assert "binary file" in refusal(file(b"\x1f\x8b\x08\0\0\0\0\0" + bytes(range(256))))
    assert "is a directory; give a .jsonl or .json file" in refusal(tmp_path)
    assert "No such file or directory; check the path" in refusal(tmp_path / "none.jsonl")
    assert "not UTF-8 text (byte 12)" in refusal(file(b'{"prompt": "\xff"}'))
    assert "tasks.json[0]: not UTF-8 text (byte 13)" in refusal(file(b'[{"prompt": "a\xff"}]', "tasks.json"))
    assert "tasks.json: not UTF-8 text (byte 13)" in refusal(file(b'[{"prompt": "\xff", NaN}]', "tasks.json"))


def test_a_file_that_cannot_be_opened_says_why(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("tasks.jsonl")  # nobody, not even root, may open a socket as a file
        assert refusal("tasks.jsonl") == "cannot read the task file tasks.jsonl: No such device or address"


@pytest.mark.slow
def test_a_200_mb_line_is_one_bad_row_and_costs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    with path.open("wb") as file:
        file.write(b'{"prompt": "' + b"a" * 5000)
        file.seek(200_000_000)  # the gap is sparse: nothing is written for it
        file.write(b'"}\n{"prompt": "after"}\n')
    tracemalloc.start()
    source = scanned(path, skip_invalid=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(bad.where, bad.problem) for bad in source.invalid] == [
        (f"{path}:1", "the row is longer than 64 MiB (200,000,003 bytes)")
    ]
    assert source.task(0).data == {"prompt": "after"}
    assert source.task(0).index == 1
    assert peak < 2.5 * MAX_ROW_BYTES


@pytest.mark.parametrize(
    ("entry", "found"),
    [("[1]", "an array"), ('"text"', "a string"), ("3", "a number"), ("true", "a boolean"), ("null", "null")],
)
def test_an_entry_that_is_not_an_object_is_named_by_line_or_index(file, entry: str, found: str) -> None:
    lines = file('{"prompt": "a"}\n\n' + entry + "\n")
    assert f"{lines}:3: expected a JSON object, found {found}" in refusal(lines)
    first = file(entry + '\n{"prompt": "a"}\n')
    assert f"{first}:1: expected a JSON object, found {found}" in refusal(first)
    array = file('[{"prompt": "a"},\n' + entry + "]", "tasks.json")
    assert f"{array}[1]: expected a JSON object, found {found}" in refusal(array)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ('{"prompt": NaN}', "NaN is not JSON; write null or a number"),
        ('{"prompt": "a", "x": [1, -Infinity]}', "Infinity is not JSON; write null or a number"),
        ('{"prompt": "a", "x": 1e400}', "Number out of range"),
        ('{"prompt": "half \\ud83d of a pair"}', "perhaps half a surrogate pair"),
        ('{"prompt": ' + "[" * 5000 + "]" * 5000 + "}", "nested too deeply"),
    ],
)
def test_an_entry_that_is_not_strict_json_is_named_by_line_or_index(file, entry: str, problem: str) -> None:
    lines = file('{"prompt": "a"}\n' + entry + '\n{"prompt": "b"}\n')
    said = refusal(lines)
    assert "1 invalid row" in said
    assert f"{lines}:2: " in said
    assert problem in said
    assert [scanned(lines, skip_invalid=True).task(n)["prompt"] for n in (0, 1)] == ["a", "b"]
    array = file('[{"prompt": "a"}, ' + entry + ', {"prompt": "b"}]', "tasks.json")
    said = refusal(array)
    assert f"{array}[1]: " in said
    assert problem in said


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"prompt": "What is NaN?"', "not valid JSON: Input data was truncated"),
        ('{"prompt": "is Infinity finite?", }', "trailing comma"),
        ("{'prompt': 'a'}", "object keys must be strings"),
        ('{"prompt": "a"} {"prompt": "b"}', "trailing characters"),
        ('{"prompt": "a\tb"}', "invalid character"),
    ],
)
def test_broken_json_is_described_by_its_own_flaw(file, line: str, problem: str) -> None:
    said = refusal(file(line))
    assert problem in said
    assert "is not JSON; write null" not in said


def test_a_broken_array_says_at_which_entry_it_breaks(file) -> None:
    cut = file('[{"prompt": "a"},\n {"prompt": "b"},\n {"prompt": ', "tasks.json")
    assert f"{cut}[2]: not valid JSON: Expecting value: line 3" in refusal(cut)
    glued = file('[{"prompt": "a"} {"prompt": "b"}]', "tasks.json")
    assert f"{glued}[1]: not valid JSON: expected ',' or ']'" in refusal(glued)


def test_numbers_and_text_are_kept_as_they_are(file) -> None:
    big = 2**70 + 1
    line = (
        f'{{"prompt": "é \\u00e9 😀 \\u0000", "n": [{big}, -{big}, {2**53 + 1}, 0.1, 1.0, 1e-7], "": null}}'
    )
    (task,) = tasks_in(file(line))
    assert task.data == {
        "prompt": "é é 😀 \0",
        "n": [big, -big, 2**53 + 1, 0.1, 1.0, 1e-7],
        "": None,
    }
    assert [type(number) for number in task["n"]] == [int, int, int, float, float, float]


def test_deep_but_bearable_nesting_is_kept(file) -> None:
    (task,) = tasks_in(file('{"prompt": "a", "x": ' + "[" * 200 + "]" * 200 + "}"))
    depth, value = 0, task["x"]
    while value:
        depth, value = depth + 1, value[0]
    assert depth == 199


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"x": float("nan")}, "nan is not JSON"),
        ({"x": [{"y": float("-inf")}]}, "-inf is not JSON"),
        ({"x": "\ud800"}, "surrogates not allowed"),
        ({"x": object()}, "Encoding objects of type object is unsupported"),
    ],
)
def test_rows_held_by_a_program_are_as_strict_as_a_file(row: dict[str, object], problem: str) -> None:
    with pytest.raises(UsageError, match=r"rows\[1\]: the row is not JSON") as caught:
        spool_rows([{"prompt": "a"}, row], "rows")
    assert problem in str(caught.value)


PIECES = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"prompt"',
    b":",
    b'"a"',
    b",",
    b"\n",
    b"1",
    b"NaN",
    b"\\ud800",
    b"\xff",
    b"\0",
]


@given(st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_bytes_give_tasks_or_one_usage_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(data)
    said = None
    try:
        tasks = tasks_in(path)
    except UsageError as problem:
        said = str(problem)
    if said is None:
        assert tasks
        assert all(isinstance(task["prompt"], str) for task in tasks)
    else:
        assert str(path) in said
