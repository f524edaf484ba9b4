"""Tables and functions as task sources: what is read, what it is called, and what is said when it cannot be."""

from __future__ import annotations

import csv
import datetime
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.task_loading import refusal, resolved, tasks_of
from windrow.cli.main import main

pytestmark = pytest.mark.slow

ROWS = [{"prompt": "one", "answer": "1"}, {"prompt": "two\nlines", "answer": "2"}]


@pytest.fixture
def file(tmp_path: Path):
    def write(content: str | bytes, name: str = "tasks.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def parquet(tmp_path: Path):
    def write(columns: dict[str, Any], name: str = "tasks.parquet", **options: Any) -> Path:
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / name, **options)
        return tmp_path / name

    return write


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module of the user's in the current directory; its name is its own, so that no other test has imported it."""

    def write(source: str) -> str:
        name = f"loader_{tmp_path.name}_{len(list(tmp_path.glob('*.py')))}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        return name

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    return write


# CSV and TSV


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_a_csv_row_is_a_task_whose_values_are_text(file, end: str, bom: str) -> None:
    path = file(bom + end.join(["prompt, answer ", '"a ""b"", c",1', "", " d ,", ""]))
    first, second = tasks_of(path)
    assert (first.data, second.data) == (
        {"prompt": 'a "b", c', "answer": "1"},
        {"prompt": " d ", "answer": ""},
    )
    assert (first.source, first.index, second.index) == ("tasks", 0, 1)


def test_a_tsv_file_is_split_at_tabs(file) -> None:
    (task,) = tasks_of(file("prompt\tanswer\na, b\t1\n", "tasks.TSV"))
    assert task.data == {"prompt": "a, b", "answer": "1"}


def test_a_row_with_too_many_or_too_few_fields_is_named_by_its_line(file) -> None:
    path = file('prompt,answer\n"a\nb",1\nc\nd,2\ne,3,x\n"f"g,4\nh,5\n')
    said = refusal(path)
    assert f"{path}:4: expected 2 fields (prompt, answer), found 1" in said
    assert f"{path}:6: expected 2 fields (prompt, answer), found 3" in said
    assert f"{path}:7: not a valid row" in said
    assert "3 invalid rows" in said
    kept = tasks_of(path, skip_invalid=True)
    assert [(task.index, task["prompt"]) for task in kept] == [(0, "a\nb"), (2, "d"), (5, "h")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "tasks.csv is empty; its first line should name the fields"),
        ("\n\n", "tasks.csv is empty"),
        ("prompt,,answer\na,b,c\n", "tasks.csv:1: column 2 has no name"),
        ("prompt,x, prompt\na,b,c\n", "tasks.csv:1: the field 'prompt' is named twice"),
        ('"prompt"x,y\na,b\n', "tasks.csv:1: the header is not valid"),
        ("prompt\n", "holds no valid task"),
        ('prompt,answer\na,1\n"b,2\nc,3\n', "tasks.csv:3: not a valid row: unexpected end of data"),
        ("prompt\na\n".encode("utf-16"), "is UTF-16; save it as UTF-8"),
        (b"prompt\na\nb\xff\n", "tasks.csv:3: not UTF-8 text (byte 1 of the line)"),
        (b"PK\x03\x04\0\0\n", "tasks.csv:1: a zero byte; this is a binary file"),
    ],
)
def test_a_flawed_csv_file_is_refused_with_the_line(file, content: str | bytes, said: str) -> None:
    assert said in refusal(file(content))


@pytest.mark.parametrize("name", ["no.csv", "no.tsv", "no.parquet"])
def test_a_missing_table_is_a_missing_file(tmp_path: Path, name: str) -> None:
    assert "No such file or directory; check the path" in refusal(tmp_path / name)
    (tmp_path / name).mkdir()
    assert "is a directory" in refusal(tmp_path / name)


def test_a_csv_field_may_be_as_long_as_a_document(file) -> None:
    (task,) = tasks_of(file("prompt\n" + "x" * 300_000 + "\n"))
    assert len(task["prompt"]) == 300_000


NAMES = st.lists(st.sampled_from(["prompt", "b c", "ü", 'q"', "x,y"]), min_size=1, unique=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@given(st.data(), NAMES.filter(lambda names: "prompt" in names))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_what_the_csv_module_writes_is_read_back_exactly(
    tmp_path: Path, data: st.DataObject, names: list[str]
) -> None:
    rows = data.draw(st.lists(st.fixed_dictionaries(dict.fromkeys(names, TEXT)), min_size=1, max_size=5))
    path = tmp_path / "written.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    assert [task.data for task in tasks_of(path)] == rows


# Parquet


def test_parquet_values_come_as_json(parquet) -> None:
    day = datetime.date(2024, 2, 29)
    path = parquet(
        {
            "prompt": ["a"],
            "n": [7],
            "x": [0.1],
            "ok": [True],
            "none": pyarrow.array([None], pyarrow.string()),
            "day": [day],
            "at": pyarrow.array([datetime.datetime(2024, 2, 29, 1, 2, 3)], pyarrow.timestamp("ns", "UTC")),
            "took": [datetime.timedelta(seconds=90)],
            "price": [Decimal("1.50")],
            "deep": [{"days": [day], "kind": "k"}],
            "kind": pyarrow.array(["a"]).dictionary_encode(),
        }
    )
    (task,) = tasks_of(path)
    assert task.data == {
        "prompt": "a",
        "n": 7,
        "x": 0.1,
        "ok": True,
        "none": None,
        "day": "2024-02-29",
        "at": "2024-02-29T01:02:03+00:00",
        "took": "PT90S",
        "price": "1.50",
        "deep": {"days": ["2024-02-29"], "kind": "k"},
        "kind": "a",
    }


def test_a_row_is_the_same_task_in_whatever_file_it_stands(file, parquet) -> None:
    lines = file("".join(json.dumps(row) + "\n" for row in ROWS), "tasks.jsonl")
    table = parquet({"prompt": [row["prompt"] for row in ROWS], "answer": [row["answer"] for row in ROWS]})
    text = file('prompt,answer\none,1\n"two\nlines",2\n')
    wanted = [(task.digest, task.source) for task in tasks_of(lines)]
    assert [(task.digest, task.source) for task in tasks_of(table)] == wanted
    assert [(task.digest, task.source) for task in tasks_of(text)] == wanted


def test_a_parquet_file_of_many_batches_is_read_in_order_and_again_by_position(parquet) -> None:
    numbers = list(range(3000))
    source = resolved(parquet({"prompt": [str(n) for n in numbers], "n": numbers}, row_group_size=700)).source
    assert len(source) == 3000
    for position in (2999, 0, 1024, 1023, 1700):
        assert (source.task(position)["n"], source.task(position).index) == (position, position)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([b"raw"], "column 'x' holds bytes (binary)"),
        ([{"bytes": b"raw", "path": "a.png"}], "column 'x' holds bytes (struct<"),
        ([[b"raw"]], "column 'x' holds bytes (list<"),
        ([float("nan")], "tasks.parquet[0]: 'x' is nan, which is not JSON"),
        ([{"y": [float("inf")]}], "tasks.parquet[0]: 'x.y' is inf, which is not JSON"),
    ],
)
def test_a_column_that_json_cannot_hold_is_named(parquet, column: list[Any], said: str) -> None:
    assert said in refusal(parquet({"prompt": ["a"], "x": column}))


def test_a_file_that_is_not_parquet_is_refused(file) -> None:
    assert "tasks.parquet is not a readable Parquet file" in refusal(file("prompt,answer\n", "tasks.parquet"))


# module:function


def test_a_function_yields_the_rows_and_names_the_source(module) -> None:
    name = module("def rows():\n    for n in range(3):\n        yield {'prompt': str(n), 'n': n}\n")
    tasks = tasks_of(f"{name}:rows")
    assert [task.data for task in tasks] == [{"prompt": str(n), "n": n} for n in range(3)]
    assert {task.source for task in tasks} == {f"{name}:rows"}


def test_a_function_is_given_the_split_if_it_takes_it(module) -> None:
    name = module(
        "def plain():\n    return [{'prompt': 'plain'}]\n"
        "def chosen(split='all'):\n    return [{'prompt': split}]\n"
        "def needed(*, split):\n    return [{'prompt': split}]\n"
    )
    assert tasks_of(f"{name}:chosen")[0]["prompt"] == "all"
    assert tasks_of(f"{name}:chosen", split="test")[0]["prompt"] == "test"
    (task,) = tasks_of(f"{name}:needed", split="train")
    assert (task["prompt"], task.split) == ("train", "train")
    (task,) = tasks_of(f"{name}:plain", split="train")
    assert (task["prompt"], task.split) == ("plain", "train")
    assert "missing a required argument: 'split'; give --split" in refusal(f"{name}:needed")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "def rows():\n    yield {'prompt': 'a'}\n    raise KeyError('gone')\n",
            "rows' raised KeyError: 'gone'",
        ),
        ("def rows():\n    return 1 / 0\n", "rows' raised ZeroDivisionError: division by zero"),
        (
            "def rows(path):\n    return []\n",
            "cannot be called with no arguments: missing a required argument: 'path'",
        ),
        ("def rows():\n    return {'prompt': 'a'}\n", "rows' returned dict; expected an iterable of dicts"),
        ("def rows():\n    return None\n", "rows' returned NoneType; expected an iterable of dicts"),
        ("async def rows():\n    return []\n", "rows' returned coroutine; expected an iterable of dicts"),
        ("rows = 3\n", "rows' is not a function that yields dicts"),
        ("def row():\n    return []\n", "has no 'rows'; did you mean 'row'?"),
        ("def rows():\n    return []\n", "rows holds no valid task"),
        ("def rows():\n    return ['a']\n", "rows[0]: expected an object (a dict), found str"),
        ("def rows():\n    return [{'prompt': 'a'}, {'prompt': b'b'}]\n", "rows[1]: 'prompt' holds bytes"),
        ("def rows():\n    return [{'prompt': 'a', 'x': {1}}]\n", "rows[0]: 'x' holds builtins.set"),
        (
            "def rows():\n    return [{'prompt': 'a', 'x': {1: 2}}]\n",
            "rows[0]: 'x' has the key 1; JSON keys are text",
        ),
        (
            "def rows():\n    return [{'prompt': 'a', 'x': 2**64}]\n",
            "rows[0]: 'x' is 18446744073709551616, which is too",
        ),
        ("def rows():\n    return [{'prompt': '\\ud800'}]\n", "rows[0]: "),
    ],
)
def test_what_is_wrong_with_a_function_is_said_under_its_name(module, source: str, said: str) -> None:
    name = module(source)
    message = refusal(f"{name}:rows")
    assert said in message
    assert f"{name}:rows" in message


def test_a_module_that_is_not_there_is_told_from_a_file_that_is_not_there(module) -> None:
    module("")
    assert refusal("no_such_module:rows") == (
        "loader 'no_such_module:rows': cannot import 'no_such_module': No module named 'no_such_module' "
        "(and there is no file no_such_module:rows)"
    )


def test_a_file_wins_over_a_function_of_the_same_name(module, tmp_path: Path) -> None:
    name = module("def rows():\n    return [{'prompt': 'function'}]\n")
    assert tasks_of(f"{name}:rows")[0]["prompt"] == "function"
    (tmp_path / f"{name}:rows").write_text('{"prompt": "file"}\n')
    assert tasks_of(f"{name}:rows")[0]["prompt"] == "file"


# hf:NAME (what is really loaded is in tests/system/tasks/test_hub.py)


@pytest.mark.parametrize(
    ("path", "options", "said"),
    [
        ("hf:owner/name", {}, "hf:owner/name needs a split: give --split, such as --split test"),
        ("hf:", {"split": "test"}, "expected hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG@REVISION"),
        ("hf:name:", {"split": "test"}, "expected hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG@REVISION"),
        ("hf:name@", {"split": "test"}, "expected hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG@REVISION"),
        ("hf:./none", {"split": "test"}, "hf:./none: there is no directory ./none"),
        ("hf:./here@v1", {"split": "test"}, "a directory has no revision, so @v1 would be ignored"),
    ],
)
def test_a_name_that_cannot_be_meant_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, options: dict[str, str], said: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert said in refusal(path, **options)


# What is installed, and what it costs


@pytest.mark.parametrize(
    ("path", "package", "extra", "options"),
    [("tasks.parquet", "pyarrow", "parquet", {}), ("hf:name", "datasets", "hf", {"split": "test"})],
)
def test_a_missing_extra_gives_the_line_to_type(
    monkeypatch: pytest.MonkeyPatch, path: str, package: str, extra: str, options: dict[str, str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # how Python marks a module that is not there
    assert refusal(path, **options).endswith(
        f"needs the extra {extra!r}; type: pip install 'windrow-rl[{extra}]'"
    )


def test_tables_are_paid_for_only_by_those_who_read_them(file) -> None:
    code = (
        "import sys, windrow.cli.main as cli\n"
        "assert cli.main(['--version']) == 0 and cli.main(['tasks', 'check', sys.argv[1]]) == 0\n"
        "heavy = {'pyarrow', 'datasets', 'pandas', 'numpy', 'csv', 'math_verify', 'sympy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    path = file('{"prompt": "a"}\n', "tasks.jsonl")
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_command_checks_every_kind(file, module, capsys: pytest.CaptureFixture[str]) -> None:
    name = module("def rows(split):\n    return [{'prompt': split}]\n")
    assert main(["tasks", "check", f"{name}:rows", "--split", "test"]) == 0
    assert main(["tasks", "check", str(file("prompt\na\nb\n"))]) == 0
    assert main(["tasks", "check", str(file("question\na\n"))]) == 2
    out, err = capsys.readouterr()
    assert "rows: 1 valid tasks" in out
    assert "tasks.csv: 2 valid tasks" in out
    assert "tasks.csv:2: neither 'prompt' nor 'messages' is in the row (it has: question)" in err
