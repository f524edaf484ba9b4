"""What the environment `web` records as WebGym's steps: its metrics of a run, and its trajectory files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import windrow
from tests.support.webgym_data import browsed, failed, row, write_browsed
from windrow.cli.main import main
from windrow.errors import ExportError, UsageError
from windrow.integrations.webgym.steps import steps_of
from windrow.records import Call, Message, Rollout
from windrow.store.rank_progress import Ranks

CLICK = ("click", {"element": 3})
BACK = ("back", {})
ANSWER = ("answer", {"text": "3 EUR"})


def won(number: int = 1, **fields: Any) -> Rollout:
    return browsed(CLICK, BACK, ANSWER, number=number, reward=1.0, **fields)


def a_run(path: Path, **manifest: Any) -> Path:
    """Won, missed, blocked, failed on the way, failed at its address, cut off without an answer."""
    rollouts = [
        won(1),
        browsed(ANSWER, number=2, reward=0.0, changes={"difficulty": 5}),
        browsed(CLICK, CLICK, number=3, blocked=True),
        failed(CLICK, number=4),
        failed(number=5, kind="invalid_url"),
        browsed(*[CLICK] * 10, number=6, reward=0.0, changes={"difficulty": 8}),
    ]
    return write_browsed(path, rollouts, **manifest)


def exported(run: Path, out: Path, **options: Any) -> list[Any]:
    windrow.export(run, to="webgym", out=out, **options)
    return [json.loads(line) for line in out.read_bytes().splitlines()]


def keys(rollout: Rollout) -> list[str]:
    return [step.key for step in steps_of(rollout)]


def test_actions_have_the_names_and_arguments_that_theirs_gives_them() -> None:
    rollout = browsed(
        ("click", {"x": 640.0, "y": 192.0}),
        ("type", {"element": 4, "text": "apples", "enter": True}),
        ("goto", {"url": "http://shop.example"}),
        ("scroll", {"direction": "down"}),
        BACK,
        ANSWER,
    )
    assert [(step.key, step.arguments) for step in steps_of(rollout)] == [
        ("click", {"coordinates": [500, 250]}),  # thousandths of the screen
        ("type", {"element_id": "4", "text": "apples", "enter": True}),
        ("navigate", {"url": "http://shop.example"}),
        ("scroll", {"direction": "down"}),
        ("goback", {}),
        ("answer", {"content": "3 EUR"}),
    ]
    assert steps_of(rollout, thousandths=True)[0].arguments == {"coordinates": [640, 192]}
    assert steps_of(rollout, thousandths=True)[0].arguments == {"coordinates": [640, 192]}


def test_a_reply_without_an_action_is_a_wait_that_says_why() -> None:
    [first, last] = steps_of(browsed(None, ANSWER, reward=1.0))
    assert (first.key, first.failed, first.reward) == ("wait", "no line begins with 'Action:'", 0.0)
    assert (last.key, last.reward) == ("answer", 1.0)


def test_an_attempt_that_failed_ends_without_an_action_and_without_a_reward() -> None:
    rollout = failed(CLICK)
    assert keys(rollout) == ["click", "none"]
    assert [step.reward for step in steps_of(rollout)] == [0.0, None]
    assert keys(failed()) == ["none"]
    assert keys(failed(kind="invalid_url")) == ["invalid_url"]


def test_the_last_step_has_the_reward_and_whether_a_wall_was_there() -> None:
    steps = steps_of(browsed(CLICK, CLICK, blocked=True))
    assert [(step.reward, step.blocked) for step in steps] == [(0.0, False), (None, True)]


def test_several_actions_of_one_reply_are_a_step_each_and_its_words_count_once() -> None:
    rollout = browsed(ANSWER, reward=1.0)
    call = rollout.turns[0].tool_calls[0]
    two = (msgspec.structs.replace(call, name="click", arguments={"element": 1}), call)
    turn = msgspec.structs.replace(rollout.turns[0], tool_calls=two)
    steps = steps_of(msgspec.structs.replace(rollout, turns=(turn,)))
    assert [(step.key, bool(step.reply)) for step in steps] == [("click", True), ("answer", False)]


def test_a_reply_is_whole_with_its_thoughts_and_its_calls() -> None:
    rollout = browsed(ANSWER, reward=1.0)
    call = Call(id="1", name="answer", arguments='{"text": "3"}')
    reply = Message(
        role="assistant", content="So.", origin="policy", reasoning="Hm.", tool_calls=(call,), turn=0
    )
    [step] = steps_of(msgspec.structs.replace(rollout, messages=(*rollout.messages[:-1], reply)))
    assert step.reply == (
        '<think>\nHm.\n</think>\nSo.\n<tool_call>\n{"name": "answer", "arguments": {"text": "3"}}\n</tool_call>'
    )


@pytest.mark.parametrize(
    "words",
    ['<tool_call>{"name": "answer", "arguments": {"text": "3"}}</tool_call>', 'So: answer({"text": "3"})'],
)
def test_a_call_that_is_written_in_words_is_there_once(words: str) -> None:
    rollout = browsed(ANSWER, reward=1.0)
    call = Call(id="1", name="answer", arguments='{"text": "3"}')
    reply = Message(role="assistant", content=words, origin="policy", tool_calls=(call,), turn=0)
    [step] = steps_of(msgspec.structs.replace(rollout, messages=(*rollout.messages[:-1], reply)))
    assert step.reply == words


def test_a_step_has_the_page_that_was_seen_before_it() -> None:
    first, second, third = (step.page for step in steps_of(won()))
    assert (first.text, first.url, first.size) == ("Page: 0", "https://shop1.example", (1280, 768))
    assert (second.text, second.url, second.title) == ("Page: 1", "https://x.example/0", "Page 0")
    assert first.image == second.image != third.image


def test_the_command_shows_their_numbers_and_honest_ones(tmp_path: Path, capsys: Any) -> None:
    run = a_run(tmp_path / "run")
    assert main(["stats", str(run), "--as", "webgym", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["webgym"] == {
        "success_rate": 1 / 3,
        "avg_chars_per_response": found["webgym"]["avg_chars_per_response"],
        "avg_steps": 14 / 3,
        "goback_rate": 1 / 14,
        "crashed_rate": 2 / 6,
        "blocked_rate": 1 / 4,
        "total_trajectories": 6,
    }
    assert found["honest"] == {
        "success": {"count": 1, "of": 6, "rate": 1 / 6},
        "success_of_graded": {"count": 1, "of": 3, "rate": 1 / 3},
        "blocked": {"count": 1, "of": 6, "rate": 1 / 6},
        "outcomes": {"answered": 2, "blocked": 1, "failed (env)": 1, "failed (infra)": 1, "max_turns": 1},
        "success_by_difficulty": {
            "easy": {"count": 1, "of": 4, "rate": 0.25},
            "medium": {"count": 0, "of": 1, "rate": 0.0},
            "hard": {"count": 0, "of": 1, "rate": 0.0},
        },
        "cancelled": 0,
    }
    assert main(["stats", str(run), "--as", "webgym"]) == 0
    text = capsys.readouterr().out
    assert "success_rate            0.3333" in text
    assert "success                 1 of 6 (0.1667) of all; 1 of 3 (0.3333) of the graded" in text


def test_an_iteration_is_counted_and_written_alone(tmp_path: Path, capsys: Any) -> None:
    rollouts = [won(1), browsed(ANSWER, reward=0.0, pass_=1), won(2, pass_=1), won(3, pass_=2)]
    run = write_browsed(tmp_path / "run", rollouts, config={"pass": 1})
    assert main(["stats", str(run), "--as", "webgym", "--iteration", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["webgym"]["total_trajectories"] == 2
    assert main(["stats", str(run), "--as", "webgym", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["webgym"]["total_trajectories"] == 4
    assert len(exported(run, tmp_path / "last.jsonl")) == 2
    assert main(["stats", str(run), "--as", "webgym", "--iteration", "-1"]) == 2
    assert len(exported(run, tmp_path / "first.jsonl", iteration=0)) == 1
    with pytest.raises(ExportError, match="4 of another iteration"):
        exported(run, tmp_path / "none.jsonl", iteration=9)


def test_cancelled_rollouts_are_in_none_of_the_numbers(tmp_path: Path, capsys: Any) -> None:
    cut = browsed(CLICK, number=2, status="cancelled", stop="cancelled", reason="budget")
    run = write_browsed(tmp_path / "run", [won(1), cut])
    assert main(["stats", str(run), "--as", "webgym"]) == 0
    text = capsys.readouterr().out
    assert "total_trajectories      1" in text
    assert "cancelled               1, in none of these numbers" in text
    report = windrow.export(run, to="webgym", out=tmp_path / "t.jsonl")
    assert (report.rows, report.left_out) == (1, {"cancelled": 1})


def test_a_trajectory_is_plain_data_under_their_names(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    lines = exported(run, tmp_path / "t.jsonl")
    assert [len(trajectory) for trajectory in lines] == [3, 1, 2, 2, 1, 10]
    first = lines[0]
    task = first[0]["observation"]["task"]
    given = row(1)
    assert {
        name: task[name] for name in ("task_name", "domain", "subdomain", "website", "difficulty", "task_id")
    } == {
        name: given[name] for name in ("task_name", "domain", "subdomain", "website", "difficulty", "task_id")
    }
    assert (task["evaluator_reference"], task["reference_answer"]) == (given["evaluator_reference"], "1 EUR")
    assert (task["max_steps"], task["trajectory_index"]) == (10, 0)
    last = first[-1]
    assert last["action"] == {
        "action": {"key": "answer", "arguments": {"content": "3 EUR"}},
        "action_string": "answer(content='3 EUR')",
    }
    assert last["response"]["raw_response"] == "I think. Action: answer"
    assert (last["reward"]["reward"], last["reward"]["evaluation"], last["reward"]["submit"]) == (
        1.0,
        "facts: 1",
        True,
    )
    assert [step["same_as_next_screenshot"] for step in first] == [True, False, False]
    assert first[1]["observation"]["page_metadata"] == {"title": "Page 0", "url": "https://x.example/0"}
    assert lines[3][-1]["reward"] == {
        "reward": None,
        "evaluation": "not judged (it is gone)",
        "is_blocked": False,
        "submit": False,
        "submission_judgment": None,
    }
    assert lines[2][-1]["reward"]["is_blocked"]


def test_screenshots_are_named_by_where_they_stand_in_the_run(tmp_path: Path) -> None:
    rollout = won(1)
    run = write_browsed(tmp_path / "run", [rollout])
    blob = steps_of(rollout)[0].page.image
    assert blob is not None
    [[first, *_]] = exported(run, tmp_path / "a.jsonl")
    assert first["observation"]["image_path"] == f"blobs/{blob[:2]}/{blob[2:]}"
    [[first, *_]] = exported(run, tmp_path / "b.jsonl", image_root="/data/run")
    assert first["observation"]["image_path"] == f"/data/run/blobs/{blob[:2]}/{blob[2:]}"


def test_the_metadata_stands_beside_json_lines_and_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    config = {"pass": 3, "policy": {"model": "m"}, "tasks": {"path": "train.jsonl"}, "concurrency": 64}
    run = write_browsed(tmp_path / "run", [won(1, pass_=3)], config=config)
    exported(run, tmp_path / "a.jsonl")
    exported(run, tmp_path / "b.jsonl")
    said = json.loads((tmp_path / "a.jsonl.metadata.json").read_bytes())
    assert said["windrow"]["source"] == "rows"
    assert {
        key: said[key] for key in ("solution_model", "dataset_file", "split", "server_size", "iteration")
    } == {
        "solution_model": "m",
        "dataset_file": "train.jsonl",
        "split": "train",
        "server_size": 64,
        "iteration": 3,
    }
    for name in ("jsonl", "jsonl.metadata.json"):
        assert (tmp_path / f"a.{name}").read_bytes() == (tmp_path / f"b.{name}").read_bytes()


@pytest.mark.parametrize(
    ("ranks", "suffix"),
    [
        ([], ""),
        ([Ranks([1.0, 1.0], [1], "plan")], "_rank_1"),  # a directory of its own
        ([Ranks([1.0, 1.0], [0, 1], "plan")], ""),  # shared
        ([Ranks([1.0, 1.0], [0, 1])], ""),  # merged
    ],
)
def test_in_a_directory_the_file_has_their_name(tmp_path: Path, ranks: Any, suffix: str) -> None:
    run = write_browsed(tmp_path / "run", [won(1, pass_=5)], config={"pass": 5}, ranks=ranks)
    out = tmp_path / "train_trajectories"
    out.mkdir()
    report = windrow.export(run, to="webgym", out=out, form="jsonl")
    name = f"train_trajectories.jsonl.iteration5{suffix}"
    assert report.out == str(out / name)
    assert {file.name for file in out.iterdir()} == {name, f"{name}.metadata.json"}


def test_without_torch_the_pip_line_is_given_and_nothing_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    run = write_browsed(tmp_path / "run", [won(1)])
    with pytest.raises(UsageError, match=r"needs the extra 'torch'.*pip install 'windrow-rl\[torch\]'"):
        windrow.export(run, to="webgym", out=tmp_path / "train_trajectories.pt.iteration0")
    assert not list(tmp_path.glob("*train*"))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"form": "csv"}, "form='csv'; it is one of pt, jsonl"),
        ({"iteration": -1}, "iteration=-1; it is a number"),
    ],
)
def test_a_setting_that_is_none_is_refused(tmp_path: Path, settings: Any, problem: str) -> None:
    run = write_browsed(tmp_path / "run", [won(1)])
    with pytest.raises(UsageError, match=problem):
        windrow.export(run, to="webgym", out=tmp_path / "t.jsonl", **settings)
