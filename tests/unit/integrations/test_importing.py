"""Runs made of NeMo Gym's files: nothing is lost, nothing is doubled, and `collect` finishes what they began."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.model_server import ModelServer
from tests.support.nemo_gym_files import (
    failure,
    given,
    half_finished,
    inputs,
    read,
    success,
    write,
    write_run,
)
from tests.support.nemo_gym_servers import Gym, answer, prompt_of
from windrow.cli.main import main
from windrow.collecting.importing import ImportedAttempt, UnreadableLine
from windrow.integrations.nemo_gym.rollout_lines import read_lines

pytestmark = pytest.mark.slow

SCRIPT = "replies: [{reply: '7'}]\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.yaml").write_text(SCRIPT)


def imported(
    *more: str, policy: tuple[str, ...] = ("--model", "scripted:script.yaml"), out: str = "run"
) -> int:
    return main(["import", "--from", "nemo-gym", "gym.jsonl", *policy, "--out", out, *more])


def collect(*more: str, tasks: str = "gym_materialized_inputs.jsonl", out: str = "run") -> int:
    return main(["collect", tasks, "--model", "scripted:script.yaml", "--out", out, "--quiet", *more])


def rollouts(attempts: str = "final") -> dict[tuple[int, int, int], windrow.Rollout]:
    found = windrow.load("run", attempts=attempts)
    return {(rollout.task.index, rollout.sample, rollout.attempt): rollout for rollout in found}


def by_key(lines: list[dict[str, Any]]) -> dict[tuple[int, int, int], dict[str, Any]]:
    places = ("_ng_task_index", "_ng_rollout_index", "_ng_attempt_index")
    return {tuple(line.get(place, 0) for place in places): line for line in lines}  # type: ignore[misc]


def test_what_came_in_goes_out_field_by_field(tmp_path: Path) -> None:
    done, failed = half_finished()
    write_run(tmp_path, done, failed)
    assert imported("--quiet") == 0
    (tmp_path / "out").mkdir()
    assert main(["export", "run", "--to", "nemo-gym", "-o", "out/gym.jsonl"]) == 0
    assert by_key(read(Path("out/gym.jsonl"))) == by_key(done)
    assert by_key(read(Path("out/gym_failures.jsonl"))) == by_key(failed)
    assert read(Path("out/gym_materialized_inputs.jsonl")) == inputs()


def test_what_the_run_asks_of_the_sampling_is_not_said_of_what_came_in(tmp_path: Path) -> None:
    write_run(tmp_path, [success(0, 0)])
    with ModelServer("7") as server:
        policy = ("--model", "m", "--base-url", server.url, "--temperature", "0.5")
        assert imported("--quiet", policy=policy) == 0
    (tmp_path / "out").mkdir()
    windrow.export("run", to="nemo-gym", out="out/gym.jsonl")
    assert read(Path("out/gym.jsonl")) == [success(0, 0)]
    assert read(Path("out/gym_materialized_inputs.jsonl"))[0]["responses_create_params"]["temperature"] == 0.5


def test_rows_that_are_too_large_for_a_line_of_the_log_go_out_as_they_came_in(tmp_path: Path) -> None:
    large = {"document": "x" * 9000}
    write_run(tmp_path, [success(0, 0), success(0, 1, **large)])
    write(tmp_path / "gym_materialized_inputs.jsonl", [{**line, **large} for line in inputs()])
    assert imported("--quiet") == 0
    (tmp_path / "out").mkdir()
    windrow.export("run", to="nemo-gym", out="out/gym.jsonl")
    assert read(Path("out/gym.jsonl")) == read(Path("gym.jsonl"))


def test_each_line_is_an_attempt_with_its_outcome(tmp_path: Path) -> None:
    write_run(tmp_path, *half_finished())
    assert imported("--quiet") == 0
    found = rollouts("all")
    assert set(found) == {(0, 0, 1), (0, 0, 2), (0, 1, 1), (1, 0, 1), (1, 1, 1), (2, 0, 1)}
    transient, late, final = found[0, 0, 1].error, found[1, 1, 1].error, found[2, 0, 1].error
    assert transient is not None and late is not None and final is not None  # noqa: PT018
    assert (transient.kind, transient.message, transient.retryable) == ("transient", "no browser", True)
    assert (late.kind, late.retryable, final.kind, final.retryable) == (
        "timeout_exceeded",
        True,
        "skipped",
        False,
    )
    assert {found[key].reward for key in ((0, 0, 1), (1, 1, 1), (2, 0, 1))} == {None}
    tools = found[1, 0, 1]
    assert (tools.status, tools.grade, tools.reward, tools.capture) == ("completed", "graded", 0.5, "tokens")
    assert tools.scores["reward"].scorer is None
    assert tools.metrics["accuracy"] == 0.5
    assert [message.role for message in tools.messages] == ["user", "assistant", "tool", "assistant"]
    assert tools.turns[1].tokens is not None
    assert tools.turns[1].tokens.prefix == 5
    assert tools.task.data == given(1)
    assert found[0, 1, 1].metrics["mask_sample"] == 1.0


def test_a_half_finished_run_is_finished_by_collect_under_the_ids_of_collect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, *half_finished())
    assert imported() == 0
    said = capsys.readouterr().out
    assert "run: 3 rollouts and 3 failed attempts imported" in said
    assert "3 of 6 are done; windrow collect gym_materialized_inputs.jsonl with the same flags" in said
    before = {key: rollout.turns for key, rollout in rollouts("all").items()}
    assert collect() == 1  # 2:0 has failed for good
    found = rollouts("all")
    assert {key: found[key].turns for key in before} == before
    new = {key: found[key].reply for key in set(found) - set(before)}
    assert new == {(1, 1, 2): "7", (2, 1, 1): "7"}
    assert collect(out="fresh") == 0
    fresh = {(one.task.index, one.sample): one.id for one in windrow.load("fresh")}
    assert {(task, sample): one.id for (task, sample, _), one in rollouts().items()} == fresh


def test_agent_servers_finish_what_they_had_begun(tmp_path: Path) -> None:
    write_run(tmp_path, *half_finished())
    with Gym({"math": lambda sent, n: answer(sent, "x", reward=0.25)}) as gym:
        agent = ("--agent", f"nemo-gym:{gym.head}")
        assert imported("--quiet", policy=agent) == 0
        arguments = ["collect", "gym_materialized_inputs.jsonl", *agent, "--out", "run", "--quiet"]
        assert main(arguments) == 1
        assert sorted(prompt_of(sent) for sent in gym.rows_of("math")) == ["1 + 1?", "2 + 2?"]
    found = {(task, sample): one for (task, sample, _), one in rollouts().items()}
    rewards = {key: one.reward for key, one in found.items()}
    assert rewards == {(0, 0): 1.0, (0, 1): 1.0, (1, 0): 0.5, (1, 1): 0.25, (2, 0): None, (2, 1): 0.25}
    assert {one.agent for one in found.values()} == {"math"}
    assert found[0, 1].scores.keys() == found[2, 1].scores.keys()


def test_importing_again_adds_nothing_and_a_longer_file_adds_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done, failed = half_finished()
    write_run(tmp_path, done[:1], failed[:1])
    assert imported("--quiet") == 0
    write_run(tmp_path, done, failed)
    assert imported("--quiet") == 0
    assert "2 rollouts and 2 failed attempts imported\n2 were there already" in capsys.readouterr().out
    log = Path("run/rollouts.jsonl").read_bytes()
    assert imported("--quiet") == 0
    assert "0 rollouts and 0 failed attempts imported\n6 were there already" in capsys.readouterr().out
    assert Path("run/rollouts.jsonl").read_bytes() == log
    assert len(rollouts("all")) == 6


def test_a_torn_line_and_bad_ones_are_told_and_collected_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_run(tmp_path, [success(0, 0)])
    whole = file.read_bytes()
    lines = [
        whole,
        b"\n",
        b"[1]\n",
        b'{"reward": 1}\n',
        b"{]\n",
        whole,
        json.dumps(success(0, 1)).encode()[:80],
    ]
    file.write_bytes(b"".join(lines))
    assert imported("--quiet") == 0
    said = capsys.readouterr().err
    assert "gym.jsonl:7: the line is torn" in said
    assert "gym.jsonl:3: expected a JSON object" in said
    assert "gym.jsonl:4: it lacks '_ng_task_index'" in said
    assert "gym.jsonl:5: cannot be read" in said
    assert "1 blank line is passed over" in said
    assert "1 line stands there again, word for word" in said
    assert len(rollouts("all")) == 1
    assert collect() == 0
    assert len(rollouts()) == 6


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([success(9, 0)], "gym.jsonl:1: rollout 0 of task 9: no input is for it"),
        (
            [success(0, 0), success(0, 2)],
            "gym.jsonl:2: rollout 2 of task 0: -k 2 has no place for it; -k 3 has",
        ),
        (
            [success(0, 0), success(0, 0, reward=0.0)],
            "gym.jsonl:2: rollout 0 of task 0 is at gym.jsonl:1, too",
        ),
    ],
)
def test_what_contradicts_the_inputs_or_itself_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[dict[str, Any]], problem: str
) -> None:
    write_run(tmp_path, lines)
    assert imported("--quiet") == 2
    assert problem in capsys.readouterr().err
    assert not Path("run").exists()


def test_files_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert imported() == 2
    assert "there is no file gym.jsonl" in capsys.readouterr().err
    write(tmp_path / "gym.jsonl", [success(0, 0)])
    assert imported() == 2
    assert "there is no file gym_materialized_inputs.jsonl; give the inputs of gym.jsonl with --inputs" in (
        capsys.readouterr().err
    )
    write(tmp_path / "mine.jsonl", inputs())
    assert imported("--inputs", "mine.jsonl", "--failures", "none.jsonl") == 2
    assert "there is no file none.jsonl" in capsys.readouterr().err
    assert imported("--inputs", "mine.jsonl", "--quiet") == 0


def test_their_own_input_file_will_do(tmp_path: Path) -> None:
    write(tmp_path / "gym.jsonl", [success(1, 1)])
    write(tmp_path / "tasks.jsonl", [given(task) for task in range(3)])
    assert imported("--inputs", "tasks.jsonl", "-k", "2", "--quiet") == 0
    assert list(rollouts()) == [(1, 1, 1)]


def test_a_run_that_it_does_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, [success(0, 0)])
    assert imported("--quiet") == 0
    assert imported("--quiet", "--max-turns", "3") == 2
    assert "what shapes the rollouts has changed" in capsys.readouterr().err


def test_the_runs_own_scorers_judge_what_is_imported_and_what_is_collected(tmp_path: Path) -> None:
    write_run(tmp_path, [success(0, 0, reward=0.0)])
    flags = ("--map", "answer=expected_answer", "--scorer", "exact")
    assert imported("--quiet", *flags) == 0
    [rollout] = windrow.load("run")
    assert (rollout.reward, rollout.state["nemo_gym"]["reward"]) == (1.0, 0.0)
    assert collect(*flags) == 0


def test_what_no_judge_could_judge_waits_for_a_verdict_unless_it_was_tried_again(tmp_path: Path) -> None:
    failed = [failure(0, n, "judge_failed", _ng_failure_judge_error="no verdict") for n in (0, 1)]
    write_run(tmp_path, [success(0, 0, _ng_attempt_index=1)], failed)
    assert imported("--quiet", policy=("--agent", "nemo-gym:http://127.0.0.1:9")) == 0
    found = rollouts("all")
    assert (found[0, 0, 1].status, found[0, 0, 2].reward) == ("failed", 1.0)
    waiting = found[0, 1, 1]
    assert (waiting.status, waiting.grade, waiting.reward) == ("completed", "failed", None)
    assert waiting.error is not None
    assert "no verdict" in waiting.error.message


def test_where_nobody_judges_such_a_rollout_has_failed_and_is_run_again(tmp_path: Path) -> None:
    write_run(tmp_path, [], [failure(0, 0, "judge_failed", _ng_failure_judge_error="no verdict")])
    assert imported("--quiet") == 0
    [rollout] = windrow.load("run")
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner, rollout.error.retryable) == ("failed", "scorer", True)


def test_a_reward_that_is_no_number_is_a_failure_and_never_a_zero(tmp_path: Path) -> None:
    file = write_run(tmp_path, [success(0, 0)])
    file.write_text(file.read_text().replace('"reward":1.0', '"reward":NaN'))
    assert imported("--quiet") == 0
    [rollout] = windrow.load("run")
    assert rollout.error is not None
    assert (rollout.status, rollout.error.kind, rollout.reward) == ("failed", "bad_reward", None)


def test_a_line_that_nobody_could_write_down_is_told_and_collected_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep: Any = 0
    for _ in range(700):
        deep = [deep]
    write_run(tmp_path, [success(0, 0, judge=deep), success(0, 1)])
    assert imported("--quiet") == 0
    assert "gym.jsonl:1: cannot be written down: " in capsys.readouterr().err
    assert list(rollouts()) == [(0, 1, 1)]


def test_what_is_written_while_it_is_read_is_left_for_the_next_import(tmp_path: Path) -> None:
    file = write_run(tmp_path, [success(0, 0), success(0, 1)])
    end = file.stat().st_size - 2
    [first, torn] = read_lines(file, end)
    assert isinstance(first, ImportedAttempt)
    assert isinstance(torn, UnreadableLine)
    assert list(read_lines(file, 0)) == []


@pytest.mark.parametrize("bad", ['"reward":NaN', '"reward":1.0,"_ng_no_persist":true'])
def test_an_answer_that_is_none_is_a_failed_attempt_which_importing_again_does_not_add(
    tmp_path: Path, bad: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_run(tmp_path, [success(0, 0), success(0, 1)], [failure(0, 0, "transient")])
    file.write_text(file.read_text().replace('"reward":1.0', bad, 1))
    assert imported("--quiet") == 0
    assert "1 rollouts and 2 failed attempts imported" in capsys.readouterr().out
    assert imported("--quiet") == 0
    assert "0 rollouts and 0 failed attempts imported\n3 were there already" in capsys.readouterr().out
    assert sorted(rollouts("all")) == [(0, 0, 1), (0, 0, 2), (0, 1, 1)]


def test_half_a_character_costs_no_more_than_itself(tmp_path: Path) -> None:
    write_run(tmp_path, [success(0, 0, "\ud83d"), success(0, 1, "7")])
    assert imported("--quiet") == 0
    assert [rollout.reply for rollout in windrow.load("run")] == ["\ufffd", "7"]


def test_a_failure_class_that_is_null_is_no_failure(tmp_path: Path) -> None:
    write_run(tmp_path, [success(0, 0, _ng_failure_class=None)])
    assert imported("--quiet") == 0
    assert [key for key, one in rollouts("all").items() if one.status == "completed"] == [(0, 0, 1)]


def test_an_input_that_differs_from_the_rows_is_told_and_kept_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = success(0, 0)
    line["responses_create_params"] = {"input": [{"role": "user", "content": "another?"}]}
    write_run(tmp_path, [line])
    assert imported("--quiet") == 0
    assert "1 rollout says that it was given another input than its row has; the first is gym.jsonl:1" in (
        capsys.readouterr().err
    )
    [rollout] = windrow.load("run")
    assert rollout.messages[0].text == "another?"


def test_seeds_of_theirs_come_back_where_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def seeded(line: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps({"seed": line["_ng_rollout_index"]})
        params = {**line["responses_create_params"], "metadata": {"extra_body": body}}
        return {**line, "responses_create_params": params}

    write_run(tmp_path, [seeded(success(0, 0)), seeded(success(0, 1))])
    write(tmp_path / "gym_materialized_inputs.jsonl", map(seeded, inputs()))
    with ModelServer("7") as server:
        policy = ("--model", "m", "--base-url", server.url)
        assert imported(policy=policy, out="none") == 0
        assert "--seeds sample sends them" in capsys.readouterr().err
        assert imported("--quiet", "--seeds", "sample", policy=policy) == 0
        arguments = ["collect", "gym_materialized_inputs.jsonl", *policy, "--seeds", "sample"]
        assert main([*arguments, "--out", "run", "--quiet"]) == 0
        assert sorted(body["seed"] for body in server.bodies[-4:]) == [0, 0, 1, 1]
    (tmp_path / "out").mkdir()
    windrow.export("run", to="nemo-gym", out="out/gym.jsonl")
    assert read(Path("out/gym_materialized_inputs.jsonl")) == [seeded(line) for line in inputs()]
    assert by_key(read(Path("out/gym.jsonl")))[0, 1, 0] == seeded(success(0, 1))


def test_seeds_that_older_versions_write_among_the_parameters_are_read_as_seeds(tmp_path: Path) -> None:
    def seeded(line: dict[str, Any]) -> dict[str, Any]:
        params = {**line["responses_create_params"], "seed": line["_ng_rollout_index"]}
        return {**line, "responses_create_params": params}

    write_run(tmp_path, [seeded(success(0, 0)), seeded(success(0, 1))])
    write(tmp_path / "gym_materialized_inputs.jsonl", map(seeded, inputs()))
    assert imported("--quiet") == 0
    assert sorted(rollouts()) == [(0, 0, 1), (0, 1, 1)]
    assert collect() == 0
    assert len(rollouts()) == 6
