"""`windrow profile`: numbers by closed forms and the statistics module, bands, and the task file that it writes."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.collect_helpers import answering, collected
from tests.support.model_server import write_jsonl
from tests.support.run_builders import FAILED, make_rollout, write_run
from windrow import Rollout
from windrow.cli.main import main
from windrow.errors import UsageError
from windrow.exports.task_files import keep_tasks
from windrow.records import OPPONENT, Usage
from windrow.stats.medians import PIECE_ROWS, Medians
from windrow.stats.profile import Range, TaskProfile, profile


def graded(name: str, *rewards: float, index: int = 0, **changes: Any) -> list[Rollout]:
    return [
        make_rollout(name, sample=sample, index=index, grade="graded", reward=reward, **changes)
        for sample, reward in enumerate(rewards)
    ]


def profiles(run: Path, **options: Any) -> dict[str, TaskProfile]:
    return {task.key: task for task in profile(run, **options).tasks()}


# -- the numbers


@given(st.lists(st.sampled_from([0.0, 1.0, 0.5, 0.25, -1.0, 1e-3]), min_size=1, max_size=12))
def test_medians_are_exact_however_many_values_there_are(numbers: list[float]) -> None:
    medians = Medians()
    medians.open()
    for number in numbers:
        medians.add(0, number)
    assert medians.median(0) == statistics.median(numbers)


def test_medians_of_many_rows_are_kept_apart() -> None:
    medians = Medians()
    rows = 2 * PIECE_ROWS + 3
    for _ in range(rows):
        medians.open()
    for offset in (0, 1, 2, 30, 40):
        for row in range(rows):
            medians.add(row, float(row + offset))
    assert [medians.median(row) for row in range(rows)] == [row + 2.0 for row in range(rows)]
    medians.open()
    assert medians.median(rows) is None


def test_a_task_has_the_numbers_of_the_textbook(tmp_path: Path) -> None:
    rewards = [1.0, 0.0, 0.5, 1.0]
    rollouts = [
        make_rollout(
            "t",
            sample=n,
            grade="graded",
            reward=reward,
            usage=Usage(prompt_tokens=5, completion_tokens=10 * (n + 1)),
        )
        for n, reward in enumerate(rewards)
    ]
    rollouts.append(make_rollout("t", sample=4, status="failed", stop="error", error=FAILED))
    task = profiles(write_run(tmp_path / "run", rollouts))["t"]
    assert (task.rollouts, task.n, task.mean, task.min, task.max) == (5, 4, 0.625, 0.0, 1.0)
    assert (task.median, task.pass_rate, task.zero_variance) == (0.75, 0.5, False)
    assert task.std == pytest.approx(statistics.stdev(rewards))
    # a failure has no length: the mean is over the four that ended
    assert (task.reply_tokens.n, task.reply_tokens.mean, task.reply_tokens.max) == (4, 25.0, 40)


def test_tasks_fall_into_bands_both_ends_of_which_are_learnable(tmp_path: Path) -> None:
    tasks = {"never": 0, "rarely": 1, "low": 2, "half": 5, "high": 8, "mostly": 9, "always": 10}
    rollouts = [
        rollout
        for index, (name, passed) in enumerate(tasks.items())
        for rollout in graded(name, *(float(n < passed) for n in range(10)), index=index)
    ]
    rollouts.append(make_rollout("lost", index=9, status="failed", stop="error", error=FAILED))
    run = write_run(tmp_path / "run", rollouts)
    bands = {name: task.band for name, task in profiles(run).items()}
    assert bands == {
        "never": "too_hard",
        "rarely": "too_hard",
        "low": "learnable",
        "half": "learnable",
        "high": "learnable",
        "mostly": "too_easy",
        "always": "too_easy",
        "lost": "ungraded",
    }
    shape = profile(run).shape()
    assert shape.bands == {"too_hard": 2, "learnable": 3, "too_easy": 2, "ungraded": 1}
    assert [(found.low, found.high, found.tasks) for found in shape.histogram] == [
        (0.0, 0.0, 1),
        (0.0, 0.2, 1),
        (0.2, 0.4, 1),
        (0.4, 0.6, 1),
        (0.6, 0.8, 0),
        (0.8, 1.0, 2),
        (1.0, 1.0, 1),
    ]
    assert (shape.groups.n, shape.groups.zero_variance) == (7, 2)
    wider = profile(run, learnable=Range(0.1, 0.9)).shape()
    assert wider.bands["learnable"] == 5


def test_bands_by_mean_reward_are_for_rewards_that_are_no_verdicts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", graded("a", -2.0, -4.0) + graded("b", 0.3, 0.5, index=1))
    found = profile(run, by="mean", learnable=Range(0.0, 1.0))
    assert [task.band for task in found.tasks()] == ["too_hard", "learnable"]
    bins = found.shape().histogram
    assert (bins[0].low, bins[-1].high) == (-3.0, pytest.approx(0.4))
    assert [bins[0].tasks, bins[-1].tasks, sum(found.tasks for found in bins)] == [1, 1, 2]


def test_a_later_pass_over_a_task_adds_to_it_and_opponents_do_not(tmp_path: Path) -> None:
    again = [
        make_rollout("t", sample=0, id="0" * 24, group="1" * 24, grade="graded", reward=reward)
        for reward in (0.0,)
    ]
    rival = graded("t", 1.0, agent=OPPONENT, id="2" * 24)
    run = write_run(tmp_path / "run", graded("t", 1.0, 1.0) + again + rival)
    [task] = profiles(run).values()
    assert (task.n, task.pass_rate, task.zero_variance) == (3, pytest.approx(2 / 3), False)
    assert profile(run).shape().groups.zero_variance == 1  # of the first pass


# -- the command


def test_the_command_lists_tasks_bands_and_a_histogram(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rollouts = graded("alpha", 1.0, 0.0) + graded("beta", 1.0, 1.0, index=1) + graded("gamma", 0.0, index=2)
    run = write_run(tmp_path / "run", rollouts)
    assert main(["profile", str(run), "--limit", "2"]) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "task n mean std min median max pass tokens longest band"
    assert lines[1] == "alpha 2/2 0.5 0.707 0 0.5 1 0.5 0 0 learnable"
    assert lines[2] == "beta 2/2 1 0 1 1 1 1 0 0 too easy, all the same"
    assert "… and 1 more (--limit 0 lists all)" in lines
    assert "tasks 3, 5 rollouts, 5 graded" in lines
    assert f"learnable 1 33.3% {'█' * 40}" in lines
    assert "groups 1 of 2 with rewards that are all the same (zero variance)" in lines


def test_the_json_has_every_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", graded("b", 1.0, index=1) + graded("a", 0.0, 1.0, index=0))
    assert main(["profile", str(run), "--json", "--limit", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [task["key"] for task in found["task_profiles"]] == ["a", "b"]
    assert found["bands"] == {"too_hard": 0, "learnable": 1, "too_easy": 1, "ungraded": 0}
    assert main(["profile", str(write_run(tmp_path / "empty")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["task_profiles"] == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--keep", "0.2..0.8"], "--keep LOW..HIGH and --out FILE go together"),
        (["--out", "x.jsonl"], "--keep LOW..HIGH and --out FILE go together"),
        (["--keep", "0.8..0.2", "--out", "x.jsonl"], "--keep '0.8..0.2' is no range"),
        (["--keep", "half", "--out", "x.jsonl"], "--keep 'half' is no range"),
        (["--learnable", "0.2"], "--learnable '0.2' is no range"),
        (["--pass-reward", "nan"], "--pass-reward: expected a reward such as 0.5, found 'nan'"),
        (["--limit", "-1"], "--limit -1: expected a number of tasks"),
        (["--keep", "0.9..", "--out", "run/tasks.jsonl", "--overwrite"], "is in the run directory itself"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "run", graded("a", 1.0))
    (run / "tasks.jsonl").write_text("")
    assert main(["profile", "run", *flags]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x.jsonl").exists()
    assert (run / "tasks.jsonl").read_text() == ""


def test_when_no_task_is_left_no_file_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", graded("a", 1.0))
    (run / "tasks.jsonl").write_text("")
    assert main(["profile", str(run), "--keep", "0.6..0.7", "--out", str(tmp_path / "x.jsonl")]) == 1
    assert "x.jsonl is not written" in capsys.readouterr().err
    assert not (tmp_path / "x.jsonl").exists()


# -- the file of the tasks that are kept


ROWS = [
    {"id": "easy", "prompt": "1 + 1?", "answer": 2, "note": "é ☃", "big": 12345678901234567890},
    {"prompt": "half?", "answer": 1.50, "nested": {"b": [1, 2.0, None], "a": True}},
    {"prompt": "hard?", "answer": 3},
    {"prompt": "half?", "answer": 1.50, "nested": {"b": [1, 2.0, None], "a": True}},
]


async def collect_rows(tasks: Path, run: Path, **options: Any) -> list[Rollout]:
    """Whoever asks "half?" is right every other time."""
    turn = {"half?": 0}

    def reply(request: Any) -> str:
        prompt = request.messages[-1].text
        if prompt == "half?":
            turn["half?"] += 1
            return "1.5" if turn["half?"] % 2 else "0"
        return {"1 + 1?": "2", "hard?": "0"}[prompt]

    options = {"samples": 2, "scorers": ["number"], "concurrency": 1, **options}
    return await collected(str(tasks), policy=answering(reply), out=str(run), **options)


async def test_the_rows_that_are_kept_have_the_digests_that_they_had(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    run, out = tmp_path / "run", tmp_path / "kept.jsonl"
    before = await collect_rows(tmp_path / "tasks.jsonl", run, shuffle=3)
    assert main(["profile", str(run), "--keep", "0.2..0.8", "--out", str(out)]) == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == [ROWS[1], ROWS[3]]
    again = await collect_rows(out, tmp_path / "again", source="tasks")
    wanted = {rollout.id for rollout in before if rollout.task["prompt"] == "half?"}
    assert {rollout.id for rollout in again} == wanted  # the same source, so the same rollouts too
    assert len(wanted) == 4


async def test_rows_are_kept_in_the_order_of_the_source_and_ungraded_ones_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    run = tmp_path / "run"
    await collect_rows(tmp_path / "tasks.jsonl", run, shuffle=1)
    order = [json.loads(line)["index"] for line in (run / "tasks.jsonl").read_text().splitlines()]
    assert order.index(0) > order.index(3)  # the run has them in another order
    lines = (run / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    hard = [line for line in lines if b'"hard?"' in line]
    (run / "rollouts.jsonl").write_bytes(b"".join(line for line in lines if line not in hard))
    out = tmp_path / "kept.jsonl"
    assert main(["profile", str(run), "--keep", "..", "--out", str(out)]) == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == [ROWS[0], ROWS[1], ROWS[3]]
    assert "wrote 3 of 4 tasks" in capsys.readouterr().err
    assert main(["profile", str(run), "--keep", "..", "--out", str(out)]) == 2
    assert "exists; --overwrite replaces it" in capsys.readouterr().err
    keep_tasks(run, profile(run), Range(1.0, 1.0), out, overwrite=True)
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ["easy"]


def test_a_run_without_its_tasks_has_no_rows_to_write(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", graded("a", 1.0))
    with pytest.raises(UsageError, match=r"has no tasks.jsonl, so there are no rows"):
        keep_tasks(run, profile(run), Range(0.0, 1.0), tmp_path / "kept.jsonl")


async def test_tasks_that_were_never_tried_are_counted_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"{n}", "answer": "1"} for n in range(5)]
    given = {"policy": answering("1"), "concurrency": 1, "out": str(tmp_path / "run")}
    tried = await collected(rows, **given, budget_tokens=1)
    assert 0 < len(tried) < 5
    assert profile(tmp_path / "run").shape().untried == 5 - len(tried)
    assert main(["profile", str(tmp_path / "run")]) == 0
    assert f"{5 - len(tried)} more were not tried" in capsys.readouterr().out
