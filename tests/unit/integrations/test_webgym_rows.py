"""WebGym's task rows are tasks: facts out of every shape of reference, an address, and as many turns as its difficulty gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import answering, collected
from tests.support.model_server import write_jsonl
from tests.support.scripted_envs import world
from tests.support.task_loading import refusal, resolved, tasks_of
from tests.support.webgym_data import row
from windrow.cli.main import main
from windrow.errors import UsageError
from windrow.tasks.row_formats import ForeignRows, env_of
from windrow.tasks.rows import spool_rows

SHAPES: list[tuple[Any, list[str]]] = [
    ("It costs 3 EUR.", ["It costs 3 EUR."]),
    (["It costs 3 EUR.", "It is red."], ["It costs 3 EUR.", "It is red."]),
    (
        [{"description": "It costs 3 EUR.", "difficulty": 1}, {"description": "It is red.", "difficulty": 2}],
        ["It costs 3 EUR.", "It is red."],
    ),
    (
        [
            {"id": 1, "description": "Price", "facts": ["It costs 3 EUR.", "It was 4 EUR."]},
            {"id": 2, "description": "Looks", "facts": ["It is red."]},
        ],
        ["It costs 3 EUR.", "It was 4 EUR.", "It is red."],
    ),
]


@pytest.mark.parametrize(("reference", "facts"), SHAPES, ids=["text", "texts", "descriptions", "groups"])
def test_every_shape_of_reference_is_its_facts_and_the_row_stays_as_it_is(reference: Any, facts: Any) -> None:
    given = row(evaluator_reference=reference)
    [task] = tasks_of([given], env="prompt")
    assert (task["facts"], task["instruction"]) == (facts, given["task_name"])
    assert {key: task[key] for key in given} == given


def test_a_row_without_a_reference_has_no_facts() -> None:
    [task] = tasks_of([row(evaluator_reference=None)], env="prompt")
    assert task["facts"] == []


@pytest.mark.parametrize(
    ("website", "url"),
    [
        ("https://shop.example/a?b=c", "https://shop.example/a?b=c"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/"),
        (" shop.example ", "https://shop.example"),
    ],
)
def test_the_website_is_where_it_starts_and_http_stays_http(website: str, url: str) -> None:
    [task] = tasks_of([row(website=website)], env="prompt")
    assert task["start_url"] == url


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"evaluator_reference": 7}, "'evaluator_reference' must be a text, a list"),
        ({"evaluator_reference": ["ok", ""]}, "evaluator_reference[1] must be a text, found ''"),
        ({"evaluator_reference": [{"difficulty": 1}]}, "evaluator_reference[0].description must be a text"),
        ({"evaluator_reference": [{"id": 1, "facts": []}]}, "evaluator_reference[0].facts must be a list"),
        (
            {"evaluator_reference": [{"id": 1, "facts": [3]}]},
            "evaluator_reference[0].facts[0] must be a text",
        ),
        ({"website": "ftp://shop.example"}, "'website' must be an address such as https://example.com"),
        ({"website": ""}, "'website' must be an address, found ''"),
        ({"website": "http://[::1"}, "'website' is no address"),
        ({"task_name": 3}, "'task_name' must be the instruction, found 3"),
        ({"difficulty": "hard"}, "'difficulty' must be a whole number, found 'hard'"),
        ({"difficulty": 2.5}, "'difficulty' must be a whole number, found 2.5"),
        ({"start_url": "https://other.example"}, "'start_url' is in the row and says something else"),
    ],
)
def test_a_row_that_is_wrong_is_named_by_its_line(tmp_path: Path, changes: Any, problem: str) -> None:
    tasks = write_jsonl(tmp_path / "tasks.jsonl", [row(1), row(2, **changes)])
    assert f"{tasks}:2: {problem}" in refusal(tasks, env="prompt")


@pytest.mark.parametrize(
    ("difficulty", "train", "test"),
    [(1, 10, 30), (3, 10, 30), (4, 20, 50), (6, 20, 50), (7, 30, 70), (40, 30, 70), (2.0, 10, 30)],
)
def test_the_difficulty_gives_the_turns_fewer_in_training(difficulty: Any, train: int, test: int) -> None:
    def turns(split: str | None) -> int:
        found = resolved([row(difficulty=difficulty)], env="prompt", split=split)
        return found.context.limits_of(found.tasks.task(0)).max_turns

    assert [turns("train"), turns(None), turns("test")] == [train, train, test]


def test_without_a_difficulty_the_facts_are_counted_and_without_either_the_run_limits() -> None:
    rows = [row(1, difficulty=None), row(2, difficulty=None, evaluator_reference=[f"{n}" for n in range(7)])]
    found = resolved([*rows, {"prompt": "hello"}], env="prompt", split="train")
    assert [found.context.limits_of(found.tasks.task(n)).max_turns for n in range(3)] == [10, 30, 50]


async def test_an_episode_ends_at_the_turns_of_its_row_unless_a_flag_says_otherwise(tmp_path: Path) -> None:
    def longer() -> Any:
        return world([], turns=99)

    async def turns(**options: Any) -> tuple[int, str]:
        rows = [{**row(difficulty=1), "prompt": "go"}]
        out = str(tmp_path / str(len(list(tmp_path.iterdir()))))
        [rollout] = await collected(
            rows, env=longer(), policy=answering("ok"), out=out, split="train", **options
        )
        return len(rollout.turns), rollout.stop

    assert await turns() == (10, "max_turns")
    assert await turns(max_turns=3) == (3, "max_turns")
    assert await turns(max_turns=12) == (12, "max_turns")
    file = tmp_path / "limits.yaml"
    file.write_text("limits: {max_turns: 4}\n")
    assert await turns(config=[str(file)]) == (10, "max_turns")


async def test_a_run_whose_flag_is_over_the_rows_is_not_continued_without_it(tmp_path: Path) -> None:
    options: Any = {"env": "prompt", "policy": answering("ok"), "out": str(tmp_path / "run")}
    await collected([row()], **options, max_turns=50)  # the default, but said
    with pytest.raises(UsageError, match="limits_over_rows"):
        await collected([row()], **options)


def test_rows_are_played_on_the_web_unless_something_says_otherwise() -> None:
    assert env_of(ForeignRows(spool_rows([row()], "rows"))) == "web"
    assert resolved([row()], env="prompt").run.env.name == "prompt"
    own = resolved([row(env="prompt")])
    assert (own.run.env.name, own.context.episode_setup(own.tasks.task(0)).env_name) == ("problem", "prompt")
    with pytest.raises(UsageError, match="give --env web, or a file for each"):
        resolved([{"prompt": "hello"}, row()])


def test_a_row_that_says_what_to_do_at_which_address_is_on_the_web() -> None:
    told = {"instruction": "Buy it.", "start_url": "https://shop.example"}
    assert resolved([told]).run.env.name == "web"
    assert resolved([{"instruction": "Buy it.", "url": "https://shop.example"}]).run.env.name == "web"
    assert resolved([told], map=["prompt=instruction"]).run.env.name == "problem"
    assert resolved([{**told, "prompt": "What is it?"}]).run.env.name == "problem"


def test_iteration_is_the_pass(tmp_path: Path) -> None:
    tasks = write_jsonl(tmp_path / "tasks.jsonl", [row(1, env="prompt")])
    script = tmp_path / "script.yaml"
    script.write_text("replies: [{reply: ok}]\n")

    def ids(flag: str, number: int) -> bytes:
        out = tmp_path / f"{flag}-{number}"
        command = ["collect", str(tasks), "--model", f"scripted:{script}", "--quiet", "--out", str(out)]
        assert main([*command, flag, str(number)]) == 0
        return (out / "rollouts.jsonl").read_bytes()[:60]

    assert ids("--iteration", 3) == ids("--pass", 3)
    assert ids("--iteration", 3) != ids("--iteration", 4)
