"""One pass over the rows: the fields they share, ids and repeats, what is refused and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.model_server import write_jsonl
from tests.support.task_reading import refusal, scanned, tasks_in
from windrow.cli.main import main
from windrow.identity import digest


@pytest.fixture
def file(tmp_path: Path):
    return lambda *rows, name="tasks.jsonl": write_jsonl(tmp_path / name, rows)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8).map("x_{}".format), JSON, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
def test_task_data_is_the_whole_row_exactly(tmp_path: Path, fields: dict[str, Any]) -> None:
    row = {"prompt": "p", **fields}
    (task,) = tasks_in(write_jsonl(tmp_path / "tasks.jsonl", [row]))
    assert json.dumps(task.data) == json.dumps(row)  # values, their types, and the order of the fields
    assert task.digest == digest(row)
    assert all(task[field] == value for field, value in row.items())


def test_a_task_is_labelled_by_its_id_or_else_by_its_digest(file) -> None:
    rows = [
        {"prompt": "a", "id": "first", "tags": ["x", "y"]},
        {"prompt": "b", "id": 7},
        {"prompt": "c", "id": None, "tags": None},
        {"prompt": "d"},
    ]
    tasks = tasks_in(file(*rows))
    assert [task.key for task in tasks] == ["first", "7", tasks[2].digest, tasks[3].digest]
    assert [task.tags for task in tasks] == [("x", "y"), (), (), ()]
    assert tasks[3].get("answer", "none") == "none"
    with pytest.raises(KeyError):
        tasks[3]["answer"]


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("id", 1.5, "'id' must be a string or an integer, found 1.5"),
        ("id", True, "'id' must be a string or an integer, found true"),
        ("id", ["a"], "'id' must be a string or an integer, found"),
        ("tags", "x", "'tags' must be a list of strings, found \"x\""),
        ("tags", ["x", 1], "'tags' must be a list of strings"),
        ("env", 3, "'env' must be a name, found 3"),
        ("agent", {}, "'agent' must be a name, found {}"),
        ("sampling", [], "'sampling' must be an object such as"),
        ("sampling", {"temprature": 1}, "'sampling' has no option 'temprature'; did you mean 'temperature'?"),
        ("sampling", {"temperature": "hot"}, "'sampling': Expected `float | null`, got `str`"),
        ("sampling", {"top_p": 2}, "'sampling': Expected `float` <= 1.0"),
        ("sampling", {"max_tokens": 0}, "'sampling': Expected `int` >= 1"),
        ("messages", [], "both 'prompt' and 'messages' are in the row"),
        ("prompt", None, "neither 'prompt' nor 'messages' is in the row (it has: "),
        ("prompt", 5, "'prompt' must be a string"),
    ],
)
def test_a_wrong_field_names_the_line_and_what_was_expected(
    file, field: str, value: Any, problem: str
) -> None:
    path = file({"prompt": "a"}, {"prompt": "b", "answer": "1", field: value})
    assert f"{path}:2: {problem}" in refusal(path)


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "'messages' must be a list of at least one message"),
        ("hello", "'messages' must be a list of at least one message"),
        (["hello"], "messages[0] must be an object with 'role' and 'content'"),
        (
            [{"role": "user", "content": "a"}, {"role": "usr", "content": "b"}],
            "messages[1]: 'role' must be one of",
        ),
        ([{"role": "user"}], "messages[0]: 'content' must be a string or a list of parts"),
    ],
)
def test_wrong_messages_are_named_by_their_position(file, messages: Any, problem: str) -> None:
    path = file({"messages": messages})
    assert f"{path}:1: {problem}" in refusal(path)


def test_an_id_may_not_stand_for_two_contents(file) -> None:
    path = file({"id": "a", "prompt": "1"}, {"id": "b", "prompt": "2"}, {"id": "a", "prompt": "3"})
    assert f"{path}:3: id 'a' is already used by another row with other content, at {path}:1" in refusal(path)


def test_every_row_with_an_id_that_is_taken_is_told_whose_it_is(file) -> None:
    """Also behind blank lines, rows that are invalid themselves, and rows that are alike."""
    path = file(
        {"id": "a", "prompt": "1"}, {"prompt": 5}, {"id": "b", "prompt": "2"}, {"id": "b", "prompt": "2"}
    )
    with open(path, "a") as rows:
        rows.write('\n{"id": "b", "prompt": "3"}\n{"id": "a", "prompt": "4"}\n')
    said = refusal(path)
    assert f"{path}:6: id 'b' is already used by another row with other content, at {path}:3" in said
    assert f"{path}:7: id 'a' is already used by another row with other content, at {path}:1" in said
    assert said.index(f"{path}:2: ") < said.index(f"{path}:6: ") < said.index(f"{path}:7: ")


def test_the_same_row_twice_is_two_occurrences(file) -> None:
    row = {"id": "a", "prompt": "1", "answer": "2"}
    turned = {"answer": "2", "prompt": "1", "id": "a"}  # the order of the fields is not content
    source = scanned(file(row, {"prompt": "other"}, turned, row))
    same = digest(row)
    identities = [source.identity(position) for position in range(4)]
    assert identities == [(same, 0), (digest({"prompt": "other"}), 0), (same, 1), (same, 2)]
    assert [source.task(position).key for position in (0, 2, 3)] == ["a", "a", "a"]


def test_occurrences_are_counted_before_limit_and_shuffle(file) -> None:
    source = scanned(file(*({"prompt": "same"} for _ in range(8))))
    chosen = source.select(limit=3, shuffle=1)
    occurrences = [chosen.identity(position)[1] for position in range(len(chosen))]
    assert len(set(occurrences)) == 3
    assert max(occurrences) >= 3  # not numbered anew among the chosen


def test_unknown_envs_and_agents_are_listed_with_their_lines_in_one_error(file, capsys) -> None:
    path = file(
        {"prompt": "a", "env": "problm"},
        {"prompt": "b"},
        {"prompt": "c", "env": "problem"},
        {"prompt": "d", "agent": "chta"},
        {"prompt": "e", "env": "no_such_module:Env"},
    )
    assert main(["tasks", "check", str(path), "--trust-rows"]) == 2
    said = capsys.readouterr().err
    assert "3 invalid rows" in said
    assert f"{path}:1: unknown env 'problm'; did you mean 'problem'?" in said
    assert f"{path}:4: unknown agent 'chta'; did you mean 'chat'?" in said
    assert f"{path}:5: env 'no_such_module:Env': cannot import 'no_such_module'" in said


def test_several_errors_are_one_list_cut_at_twenty(file) -> None:
    path = file(*({"prompt": number} for number in range(1500)))
    lines = refusal(path).splitlines()
    assert lines[0] == "1,500 invalid rows:"
    assert [line.partition(": ")[0] for line in lines[1:21]] == [f"{path}:{n}" for n in range(1, 21)]
    assert lines[21:] == ["… and 1,480 more", "--skip-invalid leaves such rows out"]


def test_skip_invalid_counts_and_lists_what_it_left_out(file, tmp_path: Path, capsys) -> None:
    path = file({"prompt": "a"}, [1], {"prompt": 2}, {"prompt": "d"}, {"prompt": "d", "id": 1.5})
    assert main(["tasks", "check", str(path)]) == 2
    assert "3 invalid rows" in capsys.readouterr().err
    assert main(["tasks", "check", str(path), "--skip-invalid"]) == 0
    said = capsys.readouterr()
    assert f"{path}: 2 valid tasks" in said.out
    assert "left out 3 invalid rows" in said.err
    assert [f"{path}:{line}: " in said.err for line in (1, 2, 3, 4, 5)] == [False, True, True, False, True]
    source = scanned(path, skip_invalid=True)
    assert [source.task(n).index for n in (0, 1)] == [0, 3]  # numbered in the whole source, bad rows too


def test_collect_says_what_it_left_out_even_when_quiet(file, tmp_path: Path, capsys) -> None:
    path = file({"prompt": "a"}, [1])
    script = tmp_path / "script.yaml"
    script.write_text("replies: [{reply: hello}]")
    command = [
        "collect",
        str(path),
        "--model",
        f"scripted:{script}",
        "--out",
        str(tmp_path / "run"),
        "--quiet",
    ]
    assert main(command) == 2
    assert not (tmp_path / "run").exists()
    capsys.readouterr()
    assert main([*command, "--skip-invalid"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "left out 1 invalid row:",
        f"{path}:2: expected a JSON object, found an array",
    ]


def test_a_file_without_one_valid_row_is_refused_also_when_skipping(file, capsys) -> None:
    path = file([1], [2])
    assert main(["tasks", "check", str(path), "--skip-invalid"]) == 2
    assert f"{path} holds no valid task" in capsys.readouterr().err


def test_repeated_rows_are_said_by_tasks_check(file, capsys) -> None:
    path = file({"prompt": "a"}, {"prompt": "a"}, {"prompt": "b"})
    assert main(["tasks", "check", str(path)]) == 0
    assert "1 of them repeat an earlier row" in capsys.readouterr().out
