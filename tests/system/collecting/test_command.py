"""The command from end to end: what it does, what it says, and the exit code that goes with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.command_process import Project, prompt_of
from windrow.records import Rollout

pytestmark = pytest.mark.slow

ROWS = [{"id": f"q{n}", "prompt": f"what is {n}", "answer": str(n)} for n in range(3)]


def right_or_wrong(body: dict[str, Any], n: int) -> str:
    """q0 is always right, q1 never, q2 by the number of the request."""
    number = int(prompt_of(body).split()[-1])
    return str({0: 0, 1: 7}.get(number, 2 + n % 2))


@pytest.fixture
def home(in_process_project: Callable[..., Project]) -> Project:
    made = in_process_project(right_or_wrong)
    made.tasks(ROWS)
    return made


# -- continuing a run


def test_more_samples_add_only_those_that_are_missing(home: Project) -> None:
    assert home.collect("-k", "4").code == 0
    four = (home.run / "rollouts.jsonl").read_bytes()
    assert home.server.completions == 12
    ended = home.collect("-k", "8")
    assert ended.code == 0
    assert "24 planned, 12 done" in ended.err
    assert home.server.completions == 24
    assert (home.run / "rollouts.jsonl").read_bytes().startswith(four)
    slots = [(rollout.task.key, rollout.sample) for rollout in home.rollouts()]
    assert slots == [(f"q{n}", sample) for n in range(3) for sample in range(8)]


def test_the_same_command_again_adds_nothing_and_says_so(home: Project) -> None:
    assert home.collect("-k", "2").code == 0
    log = (home.run / "rollouts.jsonl").read_bytes()
    asked = dict(home.server.requests)
    ended = home.collect("-k", "2")
    assert ended.code == 0
    assert "6 planned, 6 done" in ended.err
    assert "nothing to run" in ended.err
    assert (home.run / "rollouts.jsonl").read_bytes() == log
    assert home.server.requests == asked  # not even a probe


def test_fewer_samples_than_there_are_is_nothing_to_do(home: Project) -> None:
    assert home.collect("-k", "2").code == 0
    assert home.collect("-k", "1").code == 0
    assert home.server.completions == 6
    assert len(home.lines()) == 6


def test_more_tasks_add_only_those_that_are_new(home: Project) -> None:
    assert home.collect("--limit", "1").code == 0
    assert home.collect().code == 0
    home.tasks([*ROWS, {"id": "q9", "prompt": "what is 9", "answer": "9"}])
    assert home.collect().code == 0
    assert sorted(map(prompt_of, home.server.bodies)) == [f"what is {n}" for n in (0, 1, 2, 9)]
    assert [line["key"] for line in home.lines("tasks.jsonl")] == ["q0", "q1", "q2", "q9"]


def test_changed_sampling_is_refused_with_the_difference(home: Project) -> None:
    assert home.collect("--temperature", "0.5").code == 0
    before = _files(home.run)
    refused = home.collect("--temperature", "0.9")
    assert refused.code == 2
    assert "sampling.temperature: 0.5 → 0.9" in refused.err
    assert "--overwrite" in refused.err
    assert home.server.completions == 3
    assert _files(home.run) == before


def test_without_out_changed_sampling_is_another_run(home: Project) -> None:
    flags = ("--model", "stub", "--base-url", home.server.url)
    for temperature in ("0.5", "0.9", "0.5"):
        code, _, err = home.windrow("collect", "tasks.jsonl", *flags, "--temperature", temperature)
        assert code == 0, err
    runs = sorted(path.name for path in (home.path / "runs").iterdir())
    assert len(runs) == 2
    assert all(name.startswith("tasks-stub-") for name in runs)
    assert home.server.completions == 6
    listed = home.windrow("ls").out.splitlines()
    assert [line.split()[0] for line in listed] == [f"runs/{name}" for name in runs]
    assert all("3/3 done" in line for line in listed)


def test_volatile_settings_do_not_begin_another_run(home: Project) -> None:
    assert home.collect("--concurrency", "1", "--call-timeout", "30").code == 0
    assert home.collect("--concurrency", "4", "--call-timeout", "60", "--shuffle", "3").code == 0
    assert home.server.completions == 3


def test_overwrite_moves_the_old_run_aside(home: Project) -> None:
    assert home.collect("--temperature", "0.5").code == 0
    before = _files(home.run)
    for number in (1, 2):
        ended = home.collect("--temperature", "0.9", "--overwrite")
        assert ended.code == 0
        assert f"run.old-{number}" in ended.err
    assert _files(home.path / "run.old-1") == before
    assert {line["policy"]["sampling"]["temperature"] for line in home.lines()} == {0.9}
    assert home.server.completions == 9


def test_redo_runs_what_it_selects_again_as_a_new_attempt(home: Project) -> None:
    assert home.collect("-k", "2").code == 0
    home.server.reply = lambda body, n: prompt_of(body).split()[-1]  # always right
    wrong = [line["id"] for line in home.lines() if line["reward"] == 0.0]
    assert 2 <= len(wrong) < 6
    assert home.collect("-k", "2", "--redo", "reward<0.5").code == 0
    assert home.server.completions == 6 + len(wrong)
    again = home.lines()[6:]
    assert sorted((line["id"], line["attempt"]) for line in again) == sorted((id, 2) for id in wrong)
    assert {rollout.reward for rollout in home.rollouts()} == {1.0}
    assert home.collect("-k", "2").code == 0  # and then there is nothing left to redo
    assert len(home.lines()) == 6 + len(wrong)


def test_redo_refuses_a_condition_on_a_field_that_is_not_there(home: Project) -> None:
    refused = home.collect("--redo", "statsu=failed")
    assert refused.code == 2
    assert "statsu" in refused.err
    assert "'status'" in refused.err
    assert not home.run.exists()


# -- identity


def test_train_and_test_share_no_id(home: Project) -> None:
    for split in ("train", "test"):
        assert home.collect("-k", "2", "--split", split, "--out", split).code == 0
    train, test = ({line["id"] for line in home.lines(run=home.path / s)} for s in ("train", "test"))
    assert len(train) == len(test) == 6
    assert not train & test
    refused = home.collect("-k", "2", "--split", "test", "--out", "train")
    assert refused.code == 2
    assert "'train'" in refused.err
    assert "'test'" in refused.err


def test_two_rows_alike_get_two_ids_and_their_order_does_not_matter(home: Project) -> None:
    row = {"prompt": "what is 0", "answer": "0"}
    home.tasks([row, row, {"prompt": "what is 1", "answer": "1"}])
    assert home.collect().code == 0
    home.tasks([{"prompt": "what is 1", "answer": "1"}, row, row])
    assert home.collect("--out", "turned").code == 0
    ids = {line["id"] for line in home.lines()}
    assert len(ids) == 3
    assert {line["id"] for line in home.lines(run=home.path / "turned")} == ids


def test_an_id_does_not_depend_on_where_and_how_the_run_was_made(
    home: Project, project: Callable[..., Project]
) -> None:
    elsewhere = project(right_or_wrong)
    elsewhere.tasks(reversed(ROWS))
    assert home.collect("-k", "2", "--concurrency", "1").code == 0
    assert elsewhere.collect("-k", "3", "--out", "other", "--retries", "4").code == 0
    here = {line["id"] for line in home.lines()}
    there = {line["id"]: line["sample"] for line in elsewhere.lines(run=elsewhere.path / "other")}
    assert here == {id for id, sample in there.items() if sample < 2}


# -- looking without touching


def test_dry_run_sends_nothing_and_writes_nothing(home: Project) -> None:
    before = sorted(path.name for path in home.path.iterdir())
    ended = home.collect("-k", "4", "--dry-run")
    assert ended.code == 0
    assert "3 tasks × 4 = 12 rollouts" in ended.out
    assert "[user] what is 0" in ended.out
    assert not home.server.requests
    assert sorted(p.name for p in home.path.iterdir() if not p.name.startswith(".std")) == before
    assert home.collect("-k", "4").code == 0
    first = min(home.lines(), key=lambda line: (line["task"]["index"], line["sample"]))
    assert first["id"] in ended.out


def test_json_gives_one_rollout_a_line_on_standard_output(home: Project) -> None:
    ended = home.collect("-k", "2", "--json")
    assert ended.code == 0
    printed = [msgspec.json.decode(line, type=Rollout) for line in ended.out.splitlines()]
    logged = (home.run / "rollouts.jsonl").read_text().splitlines()
    without_checksums = [re.sub(r',"crc32":"[0-9a-f]{8}"}$', "}", line) for line in logged]
    assert sorted(ended.out.splitlines()) == sorted(without_checksums)
    assert {rollout.grade for rollout in printed} == {"graded"}
    assert "6 of 6 done" in ended.err


def test_show_prints_every_rollout_a_line_and_one_as_a_transcript(home: Project) -> None:
    assert home.collect("-k", "2").code == 0
    shown = home.windrow("show", "run").out.splitlines()
    rollouts = home.rollouts()
    assert [line.split()[0] for line in shown] == [rollout.id for rollout in rollouts]
    wrong = home.windrow("show", "run", "--where", "reward=0", "--json").out.splitlines()
    assert [json.loads(line)["id"] for line in wrong] == [r.id for r in rollouts if r.reward == 0.0]
    transcript = home.windrow("show", "run", rollouts[0].id[:10]).out
    for part in (rollouts[0].id, "what is 0", "completed (answered)", "reward 1", "number"):
        assert part in transcript
    missing = home.windrow("show", "run", "zzz")
    assert missing.code == 2
    assert "'zzz'" in missing.err


def test_stats_gives_every_number_its_denominator(home: Project) -> None:
    assert home.collect("-k", "2").code == 0
    text = home.windrow("stats", "run").out
    assert "6 done of 6 planned, 3 tasks, 6 attempts" in text
    assert "n = 6, 3 tasks" in text
    stats = json.loads(home.windrow("stats", "run", "--json").out)
    rewards = [rollout.reward for rollout in home.rollouts()]
    assert stats["reward"]["value"] == pytest.approx(sum(rewards) / 6)
    assert stats["pass_at"]["1"] == pytest.approx(sum(rewards) / 6)
    assert stats["status"] == {"completed": 6}
    assert stats["usage"]["prompt_tokens"] == 18
    assert home.windrow("stats", "tasks.jsonl").code == 2


def test_ls_lists_runs_as_text_and_as_json(home: Project) -> None:
    assert home.collect("--out", "runs/one").code == 0
    assert "runs/one" in home.windrow("ls").out
    (run,) = map(json.loads, home.windrow("ls", "runs", "--json").out.splitlines())
    assert (run["path"], run["counts"]["done"]) == ("runs/one", 3)
    assert home.windrow("ls", "nowhere").code == 2


def test_schema_describes_what_is_written(home: Project) -> None:
    assert home.collect().code == 0
    schema = json.loads(home.windrow("schema").out)
    rollout = schema["$defs"]["Rollout"]
    for line in home.lines():
        assert set(line) == set(rollout["properties"])
        assert set(rollout["required"]) <= set(line)


def test_tasks_check_says_what_is_wrong_and_where(home: Project) -> None:
    good = home.windrow("tasks", "check", "tasks.jsonl")
    assert good.code == 0
    assert "3 valid tasks" in good.out
    home.tasks([ROWS[0], ["not an object"], {"answer": "1"}], "flawed.jsonl")
    bad = home.windrow("tasks", "check", "flawed.jsonl")
    assert bad.code == 2
    assert "flawed.jsonl:2" in bad.err
    assert "flawed.jsonl:3" in bad.err
    skipped = home.windrow("tasks", "check", "flawed.jsonl", "--skip-invalid")
    assert skipped.code == 0
    assert "1 valid tasks" in skipped.out


def test_tasks_come_from_standard_input(home: Project) -> None:
    with (home.path / "tasks.jsonl").open("rb") as file:
        ended = home.collect(tasks="-", stdin=file)
    assert ended.code == 0, ended.err
    assert {line["task"]["source"] for line in home.lines()} == {"stdin"}
    with (home.path / "tasks.jsonl").open("rb") as file:
        assert home.collect("-k", "2", tasks="-", stdin=file).code == 0
    assert home.server.completions == 6


# -- refusing


def test_a_second_writer_is_refused_and_told_who_holds_the_lock(home: Project) -> None:
    home.server.latency_s = 600.0
    first = home.start_collect()
    first.until(lambda: home.server.in_flight == 3, "the first was running")
    for flags in ((), ("--overwrite",)):
        second = home.collect(*flags)
        assert second.code == 2
        assert f"process {first.pid}" in second.err
    assert home.server.completions == 3
    assert home.windrow("show", "run").code == 0  # readers need no lock
    first.stop()
    home.server.latency_s = 0.0
    assert home.collect().code == 0  # the lock ended with its holder


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("--temprature", "1"), ("--temprature", "--temperature")),
        (("--set", "policy.sampling.temprature=1"), ("temprature", "'temperature'")),
        (("-k", "0"), ("--samples", "1")),
        (("--scorer", "nubmer"), ("nubmer", "'number'")),
        (("--env", "probelm"), ("probelm", "'problem'")),
        (("--base-url", "localhost:8000"), ("--base-url", "http://")),
    ],
)
def test_a_misspelt_flag_or_name_is_refused_with_the_nearest_right_one(
    flags: tuple[str, ...], parts: tuple[str, ...], home: Project
) -> None:
    refused = home.collect(*flags)
    assert refused.code == 2
    assert all(part in refused.err for part in parts), refused.err
    assert "Traceback" not in refused.err
    assert not home.run.exists()
    assert not home.server.requests


def _files(run: Path) -> dict[str, bytes]:
    """Everything in a run but the lock, which names its last holder."""
    return {path.name: path.read_bytes() for path in run.iterdir() if path.name != "lock"}
