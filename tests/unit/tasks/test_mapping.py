"""`--map`: a data set's own fields become the task's, before anything looks at the row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.model_server import write_jsonl
from tests.support.task_loading import refusal, resolved, tasks_of
from windrow.cli.main import main
from windrow.identity import digest

ROW = {"question": "How many?", "answer": "2 and 2\n#### 4", "id": "q1"}
GSM8K = {"prompt": "question", "answer": "answer|after:####"}
SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "gsm8k_test.jsonl"


def mapped(row: dict[str, Any], **specs: str) -> dict[str, Any]:
    (task,) = tasks_of([{"prompt": "p", **row}], map=specs)
    assert task.data is not None
    return task.data


def test_the_mapped_row_is_the_task() -> None:
    (task,) = tasks_of([ROW], map=GSM8K)
    assert task.data == {
        "question": "How many?",
        "answer": "4",
        "id": "q1",
        "prompt": "How many?",
        "_original": {"answer": "2 and 2\n#### 4"},
    }
    assert (task.digest, task.key) == (digest(task.data), "q1")


async def test_a_mapped_run_is_recorded_graded_and_continued(tmp_path: Path) -> None:
    path, run = write_jsonl(tmp_path / "tasks.jsonl", [ROW, {**ROW, "id": "q2"}]), tmp_path / "run"
    options = {"policy": answering("It is 4."), "out": str(run), "map": GSM8K}
    first = await collected(path, **options, samples=1)
    assert [(rollout.reward, rollout.task["prompt"]) for rollout in first] == [(1.0, "How many?")] * 2
    assert len(await collected(path, **options, samples=2)) == 2
    (data,) = {json.dumps(rollout.task.data["_original"]) for rollout in windrow.load(run)}
    assert json.loads(data) == {"answer": "2 and 2\n#### 4"}


@pytest.mark.parametrize(
    ("spec", "value", "result"),
    [
        ("x", [1, {"y": None}], [1, {"y": None}]),
        ("x|after:####", "a #### 1 #### 2 ", "2"),
        ("x|after:: ", "a: b", "b"),
        ("x|before:(", " 5 (five) (x)", "5"),
        ("x|strip", "  a b\n", "a b"),
        ("x|lower", "Ä B", "ä b"),
        ("x|number", " $1,234,567.50 ", "1234567.50"),
        ("x|number", "−3", "-3"),
        ("x|number", "-1/2", "-1/2"),
        ("x|number", "7.", "7"),
        ("x|number", 12, "12"),
        ("x|json", '{"a": [1, 2.5]}', {"a": [1, 2.5]}),
        ("x|regex:a(.)c", "zabc", "b"),
        ("x|regex:a.c", "zabc", "abc"),
        ("x|regex:(?:cat|dog) (\\w+)|never", "a dog barks", "barks"),
        ("x|lower|after:is | before:. |strip", "It IS Four. Yes", "four"),
        ("x | strip", " a ", "a"),
    ],
)
def test_filters_pass_a_value_on_from_left_to_right(spec: str, value: Any, result: Any) -> None:
    assert mapped({"x": value}, y=spec)["y"] == result


@pytest.mark.parametrize(
    ("spec", "value", "said"),
    [
        ("x|after:####", "no mark", "'after:####' finds nothing, in \"no mark\""),
        ("x|after:####", "ends ####  ", "'after:####' finds nothing"),
        ("x|before:!", "no mark", "'before:!' finds nothing"),
        ("x|regex:(\\d+)|b", "abc", "'regex:(\\\\d+)|b' finds nothing, in \"abc\""),
        ("x|number", "four", "'number' finds no number, in \"four\""),
        ("x|number", "1,23", "'number' finds no number"),
        ("x|number", "1 2", "'number' finds no number"),
        ("x|number", True, "'number' needs text, in true"),
        ("x|json", "{", "'json' finds no JSON"),
        ("x|strip", 5, "'strip' needs text, in 5"),
        ("x|lower", None, "'lower' needs text, in null"),
        ("x|strip|after:b", " " + "a" * 100, "'after:b' finds nothing, in \"" + "a" * 59 + "…"),
    ],
)
def test_a_filter_that_finds_nothing_makes_the_row_invalid(spec: str, value: Any, said: str) -> None:
    message = refusal([{"prompt": "p", "x": "1"}, {"prompt": "p", "x": value}], map={"y": spec})
    assert f"rows[1]: cannot map 'y' from 'x': {said}" in message


def test_a_source_may_lie_deeper() -> None:
    row = {"a": {"b": ["zero", {"c": "deep"}]}, "d.e": "its own name", "d": {"e": "another"}}
    data = mapped(row, x="a.b.1.c", y="a.b.0", z="d.e")
    assert (data["x"], data["y"], data["z"]) == ("deep", "zero", "its own name")


@pytest.mark.parametrize("source", ["questio", "a.c", "a.b.2", "a.b.x", "a.b.0.c", "prompt.x"])
def test_a_missing_source_names_the_row_the_field_and_what_there_is(tmp_path: Path, source: str) -> None:
    path = write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": "p", "question": "q", "a": {"b": ["zero"]}}])
    message = refusal(path, map={"x": source})
    assert f"tasks.jsonl:1: cannot map 'x' from {source!r}: the row has no {source!r}" in message
    assert "(it has: prompt, question, a)" in message


def test_every_source_is_read_from_the_row_as_it_came() -> None:
    assert mapped({"a": 1, "b": 2}, a="b", b="a") == {
        "prompt": "p",
        "a": 2,
        "b": 1,
        "_original": {"a": 1, "b": 2},
    }


def test_only_another_value_counts_as_overwriting() -> None:
    assert mapped({"a": " x", "b": "x", "n": 1}, b="b|strip", n="n") == {
        "prompt": "p",
        "a": " x",
        "b": "x",
        "n": 1,
    }
    assert mapped({"n": 1, "t": True}, n="t")["_original"] == {"n": 1}
    assert "the row has an '_original' of its own" in refusal(
        [{"prompt": " p ", "_original": {}}], map={"prompt": "prompt|strip"}
    )


def test_rows_that_cannot_be_mapped_are_left_out_on_request(tmp_path: Path) -> None:
    path = tmp_path / "tasks.csv"
    path.write_text("question,answer\na,#### 1\nb,2\nc,#### 3\n")
    found = resolved(path, map=GSM8K, skip_invalid=True).source
    assert [found.task(position)["answer"] for position in range(len(found))] == ["1", "3"]
    assert [bad.where for bad in found.invalid] == [f"{path}:3"]


@pytest.mark.parametrize(
    ("field", "spec", "said"),
    [
        (
            "x",
            "a|aftr:#",
            "x=a|aftr:#: unknown filter 'aftr'; did you mean 'after'? (known: after, before, regex,",
        ),
        ("x", "a|", "unknown filter ''"),
        ("x", "a|after", "the filter 'after' needs a text: after:TEXT"),
        ("x", "a|before:", "the filter 'before' needs a text"),
        ("x", "a|lower:b", "the filter 'lower' takes no text after a colon"),
        ("x", "a|regex:(", "the pattern '(' does not compile"),
        ("x", "|strip", "expected FIELD=SOURCE"),
        ("_original", "a", "'_original' is where overwritten values are kept"),
    ],
)
def test_a_flawed_mapping_is_refused_with_where_it_was_set(field: str, spec: str, said: str) -> None:
    message = refusal([{"prompt": "p", "a": "1"}], map={field: spec})
    assert message.startswith("--map: ")
    assert said in message


def test_a_flawed_mapping_in_a_file_is_refused_with_its_line(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("tasks:\n  map:\n    prompt: question\n    answer: answer|numbr\n")
    message = refusal([ROW], config=(config,))
    assert message.startswith(
        f"{config}:4: answer=answer|numbr: unknown filter 'numbr'; did you mean 'number'?"
    )
    config.write_text("tasks:\n  map: [prompt=question]\n")
    assert f"{config}:2: tasks.map: expected `object`" in refusal([ROW], config=(config,))


def test_flags_are_laid_over_the_file_field_by_field(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text('tasks:\n  map:\n    prompt: question\n    name: id\n    answer: "answer|after:####"\n')
    flags = ["answer=answer|before:####", "name=question"]
    (task,) = tasks_of([ROW], config=(config,), map=flags, sets=("tasks.map.tag=id|lower",))
    assert (task["prompt"], task["answer"]) == ("How many?", "2 and 2")
    assert (task["name"], task["tag"]) == ("How many?", "q1")


def test_the_command_maps_and_says_what_a_flag_should_look_like(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_jsonl(tmp_path / "tasks.jsonl", [ROW]))
    check = ["tasks", "check", path, "--map", "prompt=question"]
    assert main([*check, "--map", "answer=answer|after:####"]) == 0
    assert main([*check, "--map", "prompt=answer"]) == 2
    assert main([*check, "--map", "answer"]) == 2
    out, err = capsys.readouterr()
    assert "every answer is a number" in out
    assert "--map 'prompt=answer': 'prompt' is mapped twice" in err
    assert "--map 'answer': expected FIELD=SOURCE, such as --map prompt=question" in err


class TestGsm8k:
    __test__ = SHARED.exists()  # the file lies beside the checkout, here and in CI, and nowhere else

    def test_the_real_file_runs_as_it_is(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        flags = ["--map", "prompt=question", "--map", "answer=answer|after:####"]
        assert main(["tasks", "check", str(SHARED), *flags]) == 0
        out = capsys.readouterr().out
        assert "1,319 valid tasks" in out
        assert "scorer: number (every answer is a number" in out
        (tmp_path / "script.yaml").write_text(
            "replies:\n- match: Janet\n  reply: '#### 18'\n- reply: 'It is 0.'\n"
        )
        run = tmp_path / "run"
        collect = [
            "collect",
            str(SHARED),
            *flags,
            "--model",
            f"scripted:{tmp_path / 'script.yaml'}",
            "--out",
            str(run),
        ]
        assert main([*collect, "--limit", "20", "-k", "2", "--quiet"]) == 0
        rollouts = list(windrow.load(run))
        assert len(rollouts) == 40
        assert [rollout.reward for rollout in rollouts[:3]] == [1.0, 1.0, 0.0]
        assert rollouts[0].task["answer"] == "18"
        assert rollouts[0].task["_original"]["answer"].endswith("#### 18")
