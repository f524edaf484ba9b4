"""Rows of NeMo Gym as tasks: what is sent of them, what is their identity, and materialised files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.model_server import ModelServer, write_jsonl
from windrow.cli.main import main
from windrow.errors import UsageError
from windrow.records import Json

pytestmark = pytest.mark.slow


def row(number: int, **params: Json) -> dict[str, Json]:
    return {
        "responses_create_params": {"input": [{"role": "user", "content": f"{number} + 0?"}], **params},
        "agent_ref": {"name": "math_agent"},
        "expected_answer": str(number),
    }


def numbered(task: int, rollout: int | None = None, **params: Json) -> dict[str, Json]:
    marks = {"_ng_task_index": task, "_ng_rollout_index": rollout}
    return {**row(task, **params), **{key: value for key, value in marks.items() if value is not None}}


def collect(tasks: Path, server: ModelServer, *more: str) -> int:
    return main(["collect", str(tasks), "--model", "m", "--base-url", server.url, *more])


def test_a_row_is_sent_with_its_instructions_input_and_sampling(tmp_path: Path) -> None:
    params: Any = {"instructions": "Be brief.", "temperature": 0.25, "max_output_tokens": 7}
    params["metadata"] = {"extra_body": '{"min_p": 0.1, "chat": {"deep": true}}'}
    tasks = write_jsonl(tmp_path / "t.jsonl", [row(3, **params)])
    with ModelServer("3") as server:
        assert collect(tasks, server, "--out", str(tmp_path / "run"), "--quiet", "--dialect", "vllm") == 0
        body = server.bodies[-1]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "3 + 0?"},
    ]
    assert (body["temperature"], body["min_p"], body["chat"]) == (0.25, 0.1, {"deep": True})
    assert 7 in (body.get("max_tokens"), body.get("max_completion_tokens"))


def test_a_flag_wins_over_the_rows_sampling(tmp_path: Path) -> None:
    tasks = write_jsonl(tmp_path / "t.jsonl", [row(3, temperature=0.25)])
    with ModelServer("3") as server:
        assert collect(tasks, server, "--temperature", "1", "--out", str(tmp_path / "run"), "--quiet") == 0
        assert server.bodies[-1]["temperature"] == 1


async def test_numbers_are_no_content_and_the_tasks_number_is_its_index(tmp_path: Path) -> None:
    plain = await collected([row(5)], policy=answering("5"), out=str(tmp_path / "plain"), source="s")
    marked = {**numbered(5), "_ng_rollout_id": "x"}
    [rollout] = await collected([marked], policy=answering("5"), out=str(tmp_path / "marked"), source="s")
    assert rollout.id == plain[0].id
    assert (rollout.task.index, rollout.task.data) == (5, row(5))


async def test_a_materialised_file_is_each_task_once_with_as_many_samples_as_it_has_rows(
    tmp_path: Path,
) -> None:
    rows = [numbered(task, rollout) for task in (4, 2) for rollout in range(3)]
    rollouts = await collected(rows, policy=answering("x"), out=str(tmp_path / "run"))
    found = sorted((rollout.task.index, rollout.sample) for rollout in rollouts)
    assert found == [(task, sample) for task in (2, 4) for sample in range(3)]


async def test_seeds_that_number_the_rollouts_do_not_make_tasks_of_them(tmp_path: Path) -> None:
    rows = [numbered(0, n, metadata={"extra_body": f'{{"seed": {n}}}'}) for n in range(2)]
    rollouts = await collected(rows, policy=answering("x"), out=str(tmp_path / "run"))
    assert [(rollout.task.data, rollout.sample) for rollout in rollouts] == [(row(0), 0), (row(0), 1)]


async def test_samples_that_are_asked_for_win_over_those_of_the_file(tmp_path: Path) -> None:
    rows = [numbered(0, n) for n in range(3)]
    assert len(await collected(rows, policy=answering("x"), out=str(tmp_path / "run"), samples=2)) == 2


def test_what_a_materialised_file_means_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [numbered(0, 0), numbered(0, 1), numbered(1, 0, tools=[{"type": "function", "name": "add"}])]
    tasks = write_jsonl(tmp_path / "t.jsonl", rows)
    with ModelServer("x") as server:
        assert collect(tasks, server, "--out", str(tmp_path / "run"), "--dry-run") == 0
        said = "".join(capsys.readouterr())
        assert "has from 1 to 2 rows a task, so there are 2 samples of each (-k 2)" in said
        assert "2 tasks × 2 = 4 rollouts" in said
        assert "rows ask for tools, which this policy is not told" in said
        assert collect(tasks, server, "--out", str(tmp_path / "run"), "--dry-run", "-k", "1") == 0
        assert "rows a task; -k 1 makes 1" in "".join(capsys.readouterr())


def test_rows_that_are_alike_are_tasks_of_their_own_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = write_jsonl(tmp_path / "t.jsonl", [row(1), row(2), row(1), row(1)])
    with ModelServer("x") as server:
        for flags in (["--dry-run"], ["--quiet"], []):  # the second call of a run says it, too
            assert collect(tasks, server, "--out", str(tmp_path / "run"), *flags) == 0
            said = "".join(capsys.readouterr())
            assert ("2 of the rows repeat an earlier one" in said) == (flags != ["--quiet"])
    assert len({rollout.group for rollout in windrow.load(tmp_path / "run")}) == 4


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([numbered(0, 0), {**numbered(1, 1), "_ng_task_index": 0}], "task 0 has another content here"),
        ([numbered(0, 0), numbered(0, 0)], "rollout 0 of task 0 is in an earlier row, too"),
        ([numbered(0, 0), row(1)], "some rows number their tasks and some do not"),
        ([row(1), numbered(0)], "some rows number their tasks and some do not"),
        ([{**row(0), "_ng_rollout_index": 1}], "numbers its rollout, but not its task"),
        ([numbered(0) | {"_ng_task_index": -1}], "'_ng_task_index' must be a whole number"),
        ([{"agent_ref": {"name": "a"}, "question": "?"}], "has no 'input'"),
        ([row(0, temperature=-1)], "'sampling': Expected `float` >= 0"),
        ([{**row(0), "prompt": "x"}], "an input of its own beside 'prompt'"),
    ],
)
async def test_rows_that_contradict_themselves_are_refused(
    tmp_path: Path, rows: list[dict[str, Json]], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        await collected(rows, policy=answering("x"), out=str(tmp_path / "run"))


async def test_a_row_of_ours_may_have_a_field_of_that_name(tmp_path: Path) -> None:
    ours = {"prompt": "2 + 2?", "answer": 4, "agent_ref": "x", "_ng_task_index": "mine"}
    [rollout] = await collected([ours], policy=answering("4"), out=str(tmp_path / "run"))
    assert rollout.task.data == ours
    assert rollout.reward == 1.0
