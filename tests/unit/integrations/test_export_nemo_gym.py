"""Runs as NeMo Gym's files: each line field by field, and the numbers against closed forms."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.model_server import ModelServer, write_jsonl
from tests.support.run_builders import make_rollout, write_lines
from windrow.cli.main import main
from windrow.errors import EnvError, ExportError, InfraError, UsageError
from windrow.integrations.nemo_gym.reward_profiles import best_of, described, numbers
from windrow.policies.base import Request
from windrow.records import Json

pytestmark = pytest.mark.slow

FILES = ("materialized_inputs.jsonl", "failures.jsonl", "reward_profiling.jsonl", "agent_metrics.json")
FILES += ("aggregate_metrics.json",)


def row(number: int, agent: str = "math_agent", **fields: Json) -> dict[str, Json]:
    return {
        "responses_create_params": {"input": [{"role": "user", "content": f"say {number}"}], "tools": []},
        "agent_ref": {"name": agent},
        "answer": str(number),
        **fields,
    }


def echo(request: Request) -> str:
    return request.messages[-1].text.removeprefix("say ")


async def run_of(tmp_path: Path, tasks: list[dict[str, Json]], reply: Any = echo, **options: Any) -> Path:
    path = tmp_path / "run"
    given = {"scorers": ["exact"], "samples": 2, "retries": 0, "call_retries": 0, **options}
    await collected(tasks, policy=answering(reply), out=str(path), **given)
    return path


def files(run: Path, **options: Any) -> dict[str, Any]:
    """The files of an export by what they are called after the stem: lines, or the document."""
    folder = run.parent / f"out-{sum(1 for _ in run.parent.iterdir())}"
    folder.mkdir()
    windrow.export(run, to="nemo-gym", out=folder / "x.jsonl", **options)
    assert {path.name for path in folder.iterdir()} == {"x.jsonl", *(f"x_{name}" for name in FILES)}
    found: dict[str, Any] = {}
    for path in folder.iterdir():
        lines = (
            [json.loads(line) for line in path.read_bytes().splitlines()] if path.suffix == ".jsonl" else None
        )
        found[path.stem.removeprefix("x").lstrip("_") or "rollouts"] = (
            json.loads(path.read_bytes()) if lines is None else lines
        )
    return found


async def test_a_rollout_is_a_line_with_everything_in_its_place(tmp_path: Path) -> None:
    run = await run_of(tmp_path, [row(7, level=3)], samples=1)
    [line] = files(run)["rollouts"]
    response = line.pop("response")
    assert line == {
        **row(7, level=3),
        "reward": 1.0,
        "reward_components": {"exact": 1.0},
        "_ng_task_index": 0,
        "_ng_rollout_index": 0,
    }
    [rollout] = windrow.load(run)
    said = {"annotations": [], "text": "7", "type": "output_text"}
    assert response == {
        "id": f"resp_{rollout.id}",
        "created_at": rollout.timing.started_at,
        "model": "test",
        "object": "response",
        "output": [
            {"id": "msg_0", "content": [said], "role": "assistant", "status": "completed", "type": "message"}
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": response["usage"],
        "incomplete_details": None,
    }


async def test_the_inputs_are_those_of_every_planned_rollout_also_of_such_as_never_ran(
    tmp_path: Path,
) -> None:
    def reply(request: Request) -> str:
        if request.messages[-1].text == "say 1":
            raise InfraError("away", kind="http_503")
        return echo(request)

    run = await run_of(tmp_path, [row(0), row(1), row(2)], reply)
    lines = (run / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    (run / "rollouts.jsonl").write_bytes(b"".join(line for line in lines if b"say 2" not in line))
    found = files(run)
    numbers = [
        (line.pop("_ng_task_index"), line.pop("_ng_rollout_index")) for line in found["materialized_inputs"]
    ]
    assert numbers == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert found["materialized_inputs"] == [row(n) for n in (0, 0, 1, 1, 2, 2)]
    assert [line["_ng_task_index"] for line in found["rollouts"]] == [0, 0]
    for number, missing in enumerate(found["reward_profiling"][1:], 1):
        assert (missing["num_rollouts"], missing["missing_num_rollouts"]) == (0, 2)
        assert (missing["sample"], missing["rollout_infos"]) == (row(number), [])


async def test_every_attempt_that_failed_is_a_line_and_the_rollout_says_how_many_came_before_it(
    tmp_path: Path,
) -> None:
    tries: list[int] = []

    def reply(request: Request) -> str:
        tries.append(1)
        if len(tries) < 3:
            raise InfraError("away", kind="http_503")
        return echo(request)

    found = files(await run_of(tmp_path, [row(7)], reply, samples=1, retries=2))
    [line] = found["rollouts"]
    assert line["_ng_attempt_index"] == 2
    first, second = found["failures"]
    assert "_ng_attempt_index" not in first
    assert second["_ng_attempt_index"] == 1
    assert (first["_ng_failure_class"], first["error"], first["reward"]) == ("http_503", "away", 0.0)
    assert (first["_ng_task_index"], first["_ng_rollout_index"]) == (0, 0)
    assert "_ng_failure_terminal" not in first
    assert first["answer"] == "7"


async def test_a_failure_that_is_final_says_so(tmp_path: Path) -> None:
    class Broken(windrow.Env):
        version = 1

        async def reset(self, task: windrow.Task) -> Any:
            if task["answer"] == "1":
                raise EnvError("never", kind="broken", retryable=False)
            return windrow.Observation([{"role": "user", "content": "say 0"}])

        async def step(self, reply: Any, results: Any) -> Any:
            return windrow.Step(done=True, reward=1.0)

    found = files(await run_of(tmp_path, [row(0), row(1)], env=Broken, samples=1, scorers=None))
    [failure] = found["failures"]
    assert (failure["_ng_failure_class"], failure["_ng_failure_terminal"]) == ("broken", True)


async def test_what_nobody_could_judge_is_a_failure_that_keeps_its_response(tmp_path: Path) -> None:
    def judge(task: windrow.Task, reply: str) -> float:
        if reply == "1":
            raise ValueError("no verdict")
        return 1.0

    found = files(await run_of(tmp_path, [row(0), row(1)], scorers=[judge], samples=1))
    [failure] = found["failures"]
    assert failure["_ng_failure_class"] == "judge_failed"
    assert "no verdict" in failure["_ng_failure_judge_error"]
    assert failure["response"]["output"][0]["content"][0]["text"] == "1"
    assert [line["_ng_task_index"] for line in found["rollouts"]] == [0]


async def test_of_several_attempts_that_ended_well_the_last_counts(tmp_path: Path) -> None:
    run = await run_of(tmp_path, [row(7), row(8)], samples=1)
    again = {"retries": 0, "scorers": ["exact"], "samples": 1, "redo": "task.index=0"}
    await collected([row(7), row(8)], policy=answering("other"), out=str(run), **again)
    found = files(run)
    assert [line["reward"] for line in found["rollouts"]] == [0.0, 1.0]
    assert len(found["failures"]) == 0


async def test_a_line_is_not_lost_when_what_follows_it_is_left_out(tmp_path: Path) -> None:
    run = await run_of(tmp_path, [row(0), row(1)], samples=1)
    rollouts = list(windrow.load(run))
    cancelled = {"status": "cancelled", "stop": "cancelled", "reason": "interrupted", "reward": None}
    (run / "rollouts.jsonl").write_bytes(b"")
    write_lines(run / "rollouts.jsonl", [rollouts[0], msgspec.structs.replace(rollouts[1], **cancelled)])
    report = windrow.export(run, to="nemo-gym", out=tmp_path / "x.jsonl")
    assert (report.rows, report.left_out) == (1, {"cancelled": 1})


async def test_a_rollout_of_a_task_that_is_not_there_is_left_out_and_counted(tmp_path: Path) -> None:
    run = await run_of(tmp_path, [{**row(n), "_ng_task_index": n} for n in (0, 5, 9)], samples=1)
    strangers = [make_rollout(f"stranger {n}", index=n) for n in (3, 11)]
    write_lines(run / "rollouts.jsonl", strangers)
    report = windrow.export(run, to="nemo-gym", out=tmp_path / "x.jsonl")
    assert (report.rows, report.left_out) == (3, {"of a task that is not in tasks.jsonl": 2})


async def test_a_record_that_contradicts_itself_is_left_out_and_counted(tmp_path: Path) -> None:
    run = await run_of(tmp_path, [row(0), row(1)], samples=1)
    good, bad = windrow.load(run)
    messages = tuple(msgspec.structs.replace(message, turn=7) for message in bad.messages)
    (run / "rollouts.jsonl").write_bytes(b"")
    write_lines(run / "rollouts.jsonl", [good, msgspec.structs.replace(bad, messages=messages)])
    report = windrow.export(run, to="nemo-gym", out=tmp_path / "x.jsonl")
    assert (report.rows, list(report.invalid.values())) == (1, [1])


def test_tasks_whose_prompt_was_never_rendered_are_counted(tmp_path: Path) -> None:
    rows = [{"agent_ref": {"name": "a"}, "question": f"{n}?", "answer": "4"} for n in range(2)]
    tasks = write_jsonl(tmp_path / "t.jsonl", rows)
    (tmp_path / "p.yaml").write_text("user: 'Q: {question}'\n")
    run = tmp_path / "run"
    with ModelServer(lambda body, n: (400, {}, {}) if "1?" in str(body) else "4") as server:
        arguments = ["collect", str(tasks), "--model", "m", "--base-url", server.url, "--out", str(run)]
        main([*arguments, "--prompt", str(tmp_path / "p.yaml"), "--quiet", "--scorer", "exact"])
    report = windrow.export(run, to="nemo-gym", out=tmp_path / "x.jsonl")
    assert list(report.notes.values()) == [1]


def test_seeds_of_samples_and_the_runs_sampling_are_written_where_theirs_are(tmp_path: Path) -> None:
    tasks = write_jsonl(tmp_path / "t.jsonl", [row(4)])
    run = tmp_path / "run"
    with ModelServer("4") as server:
        arguments = ["collect", str(tasks), "--model", "m", "--base-url", server.url, "--out", str(run)]
        arguments += ["--seeds", "sample", "-k", "2", "--temperature", "0.5", "--max-tokens", "9", "--quiet"]
        assert main([*arguments, "--scorer", "exact"]) == 0
    found = files(run)
    for lines in (found["rollouts"], found["materialized_inputs"]):
        params = [line["responses_create_params"] for line in lines]
        assert [one["metadata"]["extra_body"] for one in params] == ['{"seed": 0}', '{"seed": 1}']
        assert {(one["temperature"], one["max_output_tokens"]) for one in params} == {(0.5, 9)}


def test_a_prompt_that_a_template_made_is_the_input(tmp_path: Path) -> None:
    rows = [{"agent_ref": {"name": "a"}, "question": "2 + 2?", "answer": "4"}]
    tasks = write_jsonl(tmp_path / "t.jsonl", rows)
    (tmp_path / "p.yaml").write_text("system: Be brief.\nuser: 'Q: {question}'\n")
    run = tmp_path / "run"
    with ModelServer("4") as server:
        arguments = ["collect", str(tasks), "--model", "m", "--base-url", server.url, "--out", str(run)]
        assert main([*arguments, "--prompt", str(tmp_path / "p.yaml"), "--quiet", "--scorer", "exact"]) == 0
    found = files(run)
    given = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Q: 2 + 2?"}]
    assert found["rollouts"][0]["responses_create_params"] == {"input": given}
    assert found["materialized_inputs"][0]["responses_create_params"] == {"input": given}


async def test_rows_of_ours_go_out_as_theirs(tmp_path: Path) -> None:
    run = await run_of(tmp_path, [{"prompt": "say 3", "answer": "3"}], samples=1)
    found = files(run)
    params = {"input": [{"role": "user", "content": "say 3"}]}
    assert found["materialized_inputs"][0] == {
        "prompt": "say 3",
        "answer": "3",
        "responses_create_params": params,
        "agent_ref": {"name": "chat"},
        "_ng_task_index": 0,
        "_ng_rollout_index": 0,
    }
    assert found["rollouts"][0]["agent_ref"] == {"name": "chat"}


async def test_metrics_are_by_agent_and_by_task(tmp_path: Path) -> None:
    replies = iter(["0", "x", "1", "1", "x", "x"])
    tasks = [row(0, "a"), row(1, "a"), row(2, "b")]
    found = files(await run_of(tmp_path, tasks, lambda request: next(replies), concurrency=1))
    first, second = found["aggregate_metrics"]
    assert [entry["agent_ref"]["name"] for entry in (first, second)] == ["a", "b"]
    metrics = first["agent_metrics"]
    assert metrics["mean/reward"] == 0.75
    assert metrics["median/reward"] == 1.0
    assert metrics["std/reward"] == pytest.approx(0.5)
    assert (metrics["pass@1/reward"], metrics["pass@2/reward"]) == (75.0, 100.0)
    assert metrics["pass@k/num_tasks"] == 2
    assert first["key_metrics"] == {key: value for key, value in metrics.items() if key.startswith("mean/")}
    groups = first["group_level_metrics"]
    assert [group["_ng_task_index"] for group in groups] == [0, 1]
    assert [group["mean/reward"] for group in groups] == [0.5, 1.0]
    assert [info["rollout_id"] for info in groups[1]["rollout_infos"]] == ["1:0", "1:1"]
    assert second["agent_metrics"]["pass@2/reward"] == 0.0
    assert found["agent_metrics"][0] == {**metrics, "agent_ref": {"name": "a"}}
    profile = {**groups[0], "sample": tasks[0]}
    del profile["_ng_task_index"]
    assert found["reward_profiling"][0] == profile


def test_only_measurements_are_fields_and_usage_does_not_replace_them() -> None:
    answer = {
        "reward": 1,
        "correct": True,
        "total_tokens": 5,
        "level": 3,
        "note": "x",
        "_ng_attempt_index": 2,
        "response": {"usage": {"total_tokens": 99, "input_tokens": 7, "input_tokens_details": {}}},
    }
    assert numbers(answer, {"level": 3}) == {"reward": 1, "correct": 1, "total_tokens": 5, "input_tokens": 7}


def test_the_statistics_of_one_value_have_no_spread() -> None:
    one = {"mean/x": 2.0, "max/x": 2.0, "min/x": 2.0, "median/x": 2.0, "std/x": 0.0}
    assert described({"x": [2.0], "nothing": []}) == one


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=7), st.data())
def test_the_best_of_k_is_the_mean_over_all_choices_of_k(rewards: list[float], data: Any) -> None:
    k = data.draw(st.integers(1, len(rewards)))
    assert best_of(rewards, k) == pytest.approx(fmean(max(chosen) for chosen in combinations(rewards, k)))


@pytest.mark.parametrize(("n", "passed", "k"), [(4, 1, 1), (4, 1, 2), (8, 3, 5), (5, 0, 5), (5, 5, 2)])
def test_for_rewards_of_0_and_1_it_is_pass_at_k(n: int, passed: int, k: int) -> None:
    closed = 1 - math.comb(n - passed, k) / math.comb(n, k)
    assert best_of([1.0] * passed + [0.0] * (n - passed), k) == pytest.approx(closed)


async def test_all_files_appear_or_none(tmp_path: Path) -> None:
    run = await run_of(tmp_path, [row(0)])
    out = tmp_path / "out"
    out.mkdir()
    (out / "x_failures.jsonl").write_text("mine")
    with pytest.raises(UsageError, match=r"x_failures\.jsonl exists"):
        windrow.export(run, to="nemo-gym", out=out / "x.jsonl")
    assert [path.name for path in out.iterdir()] == ["x_failures.jsonl"]
    tasks = run / "tasks.jsonl"
    tasks.write_bytes(tasks.read_bytes() * 2)
    with pytest.raises(ExportError, match="two tasks of the run have the index 0"):
        windrow.export(run, to="nemo-gym", out=out / "x.jsonl", overwrite=True)
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [("x_failures.jsonl", "mine")]


async def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = await run_of(tmp_path, [row(0), row(1, "b")])
    assert files(run) == files(run)
