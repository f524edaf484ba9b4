"""The figures of a call: what is counted, how it is put into words, and how it is laid out for a width."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.model_server import write_jsonl
from tests.support.run_builders import FAILED, judge, make_rollout
from windrow.cli import progress as progress_module
from windrow.cli.live_display import pack
from windrow.cli.main import main
from windrow.cli.progress import MILESTONES, Display
from windrow.cli.progress_text import Speed, duration, frame, percent
from windrow.engine.progress import Progress
from windrow.policies import Completion, Request
from windrow.policies.scripted import CallablePolicy

pytestmark = pytest.mark.slow

ROWS = [{"prompt": f"number {n}", "answer": "42"} for n in range(100)]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# -- counting


def test_what_is_committed_is_counted_by_agent_and_failures_by_kind() -> None:
    progress = Progress(planned=4, left={"chat": 3, "pkg:Other": 1})
    progress.count([make_rollout(grade="graded", reward=0.5)], settled=True)
    progress.count([make_rollout(status="failed", error=FAILED)], settled=False)
    progress.count([make_rollout(status="failed", error=FAILED, attempt=2)], settled=True)
    progress.count([make_rollout(agent="pkg:Other", grade="graded", reward=0.0)], settled=True)
    assert progress.left == {"chat": 1, "pkg:Other": 0}
    assert progress.failures == {"infra/http_503": 2}
    assert (progress.settled, progress.attempts, progress.failed) == (3, 4, 2)
    assert (progress.rewards, progress.reward_sum) == (2, 0.5)


async def test_what_is_graded_after_the_commit_is_in_the_mean(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    def watch(progress: Progress) -> None:
        seen.append((progress.rewards, progress.reward_sum))

    options: dict[str, Any] = {"policy": answering("42"), "scorers": [judge], "concurrency": 1}
    await collected(ROWS[:3], out=str(tmp_path / "run"), on_progress=watch, **options)
    assert seen == [(1, 1.0), (2, 2.0), (3, 3.0), (3, 3.0)]  # the last one says that no rollout runs any more


async def test_rows_with_agents_of_their_own_are_counted_under_them(tmp_path: Path) -> None:
    rows = [{**row, "agent": "tests.support.named_parts:Twice"} for row in ROWS[:2]] + ROWS[2:5]
    seen: list[dict[str, int]] = []

    def watch(progress: Progress) -> None:
        seen.append(dict(progress.left))

    options: dict[str, Any] = {"policy": answering("42"), "concurrency": 1, "samples": 2, "trust_rows": True}
    await collected(rows, out=str(tmp_path / "run"), on_progress=watch, **options)
    assert seen[0] == {"tests.support.named_parts:Twice": 3, "chat": 6}
    assert seen[-1] == {"tests.support.named_parts:Twice": 0, "chat": 0}
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())["agents"]
    assert {entry["agent"]: entry["key_metrics"]["rollouts"] for entry in found} == {
        "chat": 6,
        "tests.support.named_parts:Twice": 4,
    }


async def test_a_grading_pass_over_earlier_rollouts_reports_its_progress(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    await collected(ROWS[:4], policy=answering("42"), scorers=["number"], out=run)
    seen: list[tuple[str, int, int]] = []

    def watch(progress: Progress) -> None:
        seen.append((progress.phase, progress.graded, progress.to_grade))

    again: dict[str, Any] = {"scorers": ["exact"], "regrade": True, "concurrency": 1}
    await collected(ROWS[:4], policy=answering("42"), out=run, on_progress=watch, **again)
    assert seen == [("grading", n, 4) for n in (1, 2, 3, 4)]


# -- in words


def test_a_frame_says_what_is_done_what_failed_and_what_is_left() -> None:
    clock = Clock()
    speed = Speed(clock)
    progress = Progress(planned=2000, settled=500, rewards=400, reward_sum=100.0, tokens=12_340, in_flight=8)
    progress.phase, progress.running_since = "running", clock.now
    clock.now += 10
    progress.failures = {"infra/http_503": 5, "env/ValueError": 95}
    progress.left = {"chat": 1400, "pkg:Other": 100, "pkg:Done": 0}
    now = frame(progress, speed)
    assert now.counts == " 25%  500/2,000"
    assert now.figures == ("50.0/s", "1,234 tok/s", "reward 0.250 (n 400)", "8 running", "0:30 to go")
    assert now.failures == ("100 failed:", "env/ValueError 95", "infra/http_503 5")
    assert now.left == ("left:", "chat 1,400", "pkg:Other 100")


def test_only_the_largest_counts_are_named() -> None:
    progress = Progress(planned=30, left={f"a{n}": n for n in range(8)}, phase="running")
    progress.failures = {f"infra/k{n}": n for n in range(1, 8)}
    now = frame(progress, Speed())
    assert now.left == ("left:", "a7 7", "a6 6", "a5 5", "a4 4", "a3 3", "+ 2 agents")
    assert now.failures[1:] == ("infra/k7 7", "infra/k6 6", "infra/k5 5", "infra/k4 4", "+ 3 kinds")


@pytest.mark.parametrize(
    ("progress", "status"),
    [
        (Progress(planned=9, phase="opening"), "waiting for the policy"),
        (
            Progress(planned=9, phase="grading", graded=3, to_grade=1200),
            "grading 3 of 1,200 from earlier calls",
        ),
        (Progress(planned=9, phase="aggregating"), "computing the metrics"),
    ],
    ids=["opening", "grading", "aggregating"],
)
def test_what_cannot_be_counted_is_named(progress: Progress, status: str) -> None:
    assert frame(progress, Speed()).status == status


def test_speed_is_that_of_the_last_minute_and_in_the_end_that_of_all() -> None:
    clock = Clock()
    speed = Speed(clock)
    progress = Progress(planned=10**6, running_since=clock.now)
    for _ in range(600):  # ten minutes at 10 a second
        clock.now += 1
        progress.settled += 10
        speed.rates(progress)
    for _ in range(200):  # then more slowly
        clock.now += 1
        progress.settled += 1
        progress.tokens += 5
        rates = speed.rates(progress)
    assert rates == pytest.approx((1.0, 5.0))
    progress.running_until = clock.now
    clock.now += 1000  # what comes after the work is not counted
    assert speed.rates(progress) == pytest.approx((6200 / 800, 1000 / 800))


def test_what_comes_before_the_rollouts_is_not_in_their_speed() -> None:
    clock = Clock()
    speed = Speed(clock)
    progress = Progress(planned=100, phase="serving")
    clock.now += 600
    assert speed.rates(progress) == (0.0, 0.0)
    progress.running_since = clock.now
    clock.now += 2
    progress.settled, progress.tokens = 10, 50
    assert speed.rates(progress) == (5.0, 25.0)


class SlowToOpen(CallablePolicy):
    """Notes the times at which it was open, was asked first, and had answered last."""

    opened = asked = answered = 0.0

    async def open(self) -> None:
        await asyncio.sleep(0.05)
        self.opened = time.monotonic()

    async def complete(self, request: Request) -> Completion:
        self.asked = self.asked or time.monotonic()
        completion = await super().complete(request)
        self.answered = time.monotonic()
        return completion


async def test_rollouts_run_from_when_the_policy_is_open_until_the_last_is_delivered(tmp_path: Path) -> None:
    policy = SlowToOpen(lambda request: "42", name="test")
    seen: list[Progress] = []
    await collected(ROWS[:5], policy=policy, out=str(tmp_path / "run"), on_progress=seen.append)
    ended = time.monotonic()
    progress = seen[-1]
    assert progress.running_since is not None
    assert progress.running_until is not None
    assert policy.opened <= progress.running_since <= policy.asked
    assert policy.answered <= progress.running_until <= ended


def test_hundred_percent_means_all() -> None:
    assert (percent(999, 1000), percent(1000, 1000), percent(0, 5), percent(0, 0)) == (99, 100, 0, 100)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3600, "1:00:00"), (90_061, "25:01:01")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# -- laid out


@given(st.lists(st.text(min_size=1, max_size=60), max_size=8), st.integers(1, 130))
def test_no_packed_line_is_wider_than_its_room(parts: list[str], room: int) -> None:
    assert all(cell_len(line) <= room for line in pack(parts, room))


def test_parts_fill_lines_in_order_and_what_is_too_wide_loses_its_middle() -> None:
    assert pack(["aa", "bb", "cc", "dd"], 10) == ["aa  bb  cc", "dd"]
    [cut] = pack(["a_very_long_package.module:AgentName 12,345"], 24)
    assert cut.startswith("a_very_long")
    assert cut.endswith("12,345")
    assert len(cut) == 24


# -- off a terminal


def script(path: Path, *rules: dict[str, Any]) -> str:
    (path / "script.json").write_text(json.dumps({"replies": [*rules, {"reply": "42"}]}))
    return f"scripted:{path / 'script.json'}"


def test_the_command_prints_a_line_at_each_milestone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    flags = ["--model", script(tmp_path), "--out", str(tmp_path / "run"), "--concurrency", "1"]
    assert main(["collect", str(tasks), *flags]) == 0
    said = capsys.readouterr()
    shares = [line.split("%")[0] for line in said.err.splitlines() if "tok/s" in line]
    assert shares == [str(milestone) for milestone in MILESTONES]
    assert said.out == ""


def test_quiet_prints_warnings_and_errors_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = write_jsonl(tmp_path / "tasks.jsonl", ROWS[:5])
    flags = ["--model", script(tmp_path), "--out", str(tmp_path / "run"), "--quiet"]
    assert main(["collect", str(tasks), *flags]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["collect", str(tasks), *flags, "--overwrite"]) == 0
    assert capsys.readouterr().err.startswith("warning: the old run was moved to ")
    assert main(["collect", str(tasks), *flags, "--temperature", "2"]) != 0
    assert capsys.readouterr().err.startswith("windrow: ")


def test_json_lines_are_the_rollouts_of_this_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = write_jsonl(tmp_path / "tasks.jsonl", ROWS[:5])
    flags = ["--model", script(tmp_path), "--out", str(tmp_path / "run"), "--json"]
    assert main(["collect", str(tasks), *flags]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    stored = {rollout.id: rollout.reward for rollout in windrow.load(tmp_path / "run")}
    assert {line["id"]: line["reward"] for line in lines} == stored
    assert len(lines) == 5
    assert main(["collect", str(tasks), *flags]) == 0
    assert capsys.readouterr().out == ""


def test_a_reader_that_goes_away_is_told_of_once_and_the_run_goes_on(tmp_path: Path) -> None:
    tasks = write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    command = [sys.executable, "-m", "windrow", "collect", str(tasks), "--model", script(tmp_path)]
    running = subprocess.Popen(
        [*command, "--out", str(tmp_path / "run"), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stdout is not None
    running.stdout.close()
    _, said = running.communicate(timeout=120)
    assert running.returncode == 0
    assert said.count(b"nobody reads standard output any more") == 1
    assert len(list(windrow.load(tmp_path / "run"))) == len(ROWS)


def test_what_takes_long_before_anything_can_be_counted_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_module, "SLOW_S", 0.0)
    said = ""
    with Display() as display:
        display.status("reading what is done")
        deadline = time.monotonic() + 60
        while not said.endswith("\n") and time.monotonic() < deadline:
            time.sleep(0.005)
            said += capsys.readouterr().err
    assert said == "reading what is done …\n"
    monkeypatch.setattr(progress_module, "SLOW_S", 3600.0)
    with Display() as display:
        display.status("reading what is done")
    assert capsys.readouterr().err == ""


def test_off_a_terminal_the_terminal_library_is_not_even_imported(tmp_path: Path) -> None:
    tasks = write_jsonl(tmp_path / "tasks.jsonl", ROWS[:2])
    flags = ["--model", script(tmp_path), "--out", str(tmp_path / "run")]
    code = f"import sys, windrow.cli.main as m; m.main({['collect', str(tasks), *flags]!r}); print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr
