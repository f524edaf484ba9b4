"""What stops a run by itself: failures, budgets, an outage; and the same command that goes on after it."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_process import PATIENCE_S
from tests.support.model_server import ModelServer, write_jsonl
from windrow import load
from windrow.cli.main import main
from windrow.util.descriptors import SPARE, make_room

pytestmark = pytest.mark.slow

ROWS = [{"prompt": f"what is {n}", "answer": "42"} for n in range(40)]


class Command:
    """`collect` on the tasks of a directory, one at a time and without retries; its exit code and what it said."""

    def __init__(
        self, path: Path, stub: Callable[..., ModelServer], capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._path = path
        self._stub = stub
        self._capsys = capsys
        self.server: ModelServer | None = None

    def __call__(
        self, *flags: str, reply: Any = "42", concurrency: int = 1, latency_s: float = 0.0
    ) -> tuple[int, str]:
        self.server = self._stub(reply, latency_s=latency_s)
        where = ["--base-url", self.server.url, "--out", str(self._path / "run")]
        few = ["--concurrency", str(concurrency), "--call-retries", "0", "--retries", "0"]
        code = main(["collect", str(self._path / "tasks.jsonl"), "--model", "stub", *where, *few, *flags])
        return code, self._capsys.readouterr().err


@pytest.fixture
def collect(tmp_path: Path, stub: Callable[..., ModelServer], capsys: pytest.CaptureFixture[str]) -> Command:
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    return Command(tmp_path, stub, capsys)


def test_a_token_budget_stops_the_run_after_the_rollout_that_uses_it_up(
    collect: Command, tmp_path: Path
) -> None:
    code, said = collect("--budget-tokens", "20")
    assert code == 3
    assert "not done (the budget of 20 tokens is used up): the same command continues" in said
    spent = [r.usage.prompt_tokens + r.usage.completion_tokens for r in load(tmp_path / "run")]
    assert sum(spent[:-1]) < 20 <= sum(spent)
    assert collect()[0] == 0
    assert len(list(load(tmp_path / "run"))) == 40


def test_a_cost_budget_counts_by_the_price_of_the_model(collect: Command, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("prices: {st*: {prompt: 1000000, completion: 2000000}}", encoding="utf-8")
    code, said = collect("--config", str(prices), "--budget-cost", "30")
    assert code == 3
    assert "the budget of 30 is used up" in said
    found = list(load(tmp_path / "run"))
    assert all(
        r.usage.cost == r.usage.prompt_tokens + 2.0 * r.usage.completion_tokens
        and r.turns[0].usage == r.usage
        for r in found
    )
    assert sum(r.usage.cost or 0 for r in found[:-1]) < 30


def test_cached_tokens_have_a_price_of_their_own(collect: Command, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("prices: {stub: {prompt: 4000000, completion: 0, cached: 1000000}}", encoding="utf-8")

    def cached(body: dict[str, Any], n: int) -> dict[str, Any]:
        usage = {"prompt_tokens": 10, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 6}}
        return {"choices": [{"message": {"content": "42"}, "finish_reason": "stop"}], "usage": usage}

    assert collect("--config", str(prices), "--limit", "2", reply=cached)[0] == 0
    assert {r.usage.cost for r in load(tmp_path / "run")} == {4 * 4.0 + 6 * 1.0}


def test_a_cost_budget_without_a_price_is_refused_with_what_to_write(
    collect: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = collect("--budget-cost", "30")
    assert code == 2
    assert "--budget-cost needs the price of 'stub'" in said
    assert "prices: {'stub': {prompt: 2.5, completion: 10}}" in said


@pytest.mark.slow
def test_a_budget_of_seconds_cuts_what_runs_and_it_is_run_again(collect: Command, tmp_path: Path) -> None:
    def first_three(body: dict[str, Any], n: int) -> str:
        assert collect.server is not None
        assert n < 3 or collect.server.gone.wait(PATIENCE_S)
        return "42"

    code, said = collect("--budget-seconds", "1", reply=first_three)
    assert code == 3
    assert "the budget of 1 seconds is used up" in said
    found = list(load(tmp_path / "run"))
    assert [(r.status, r.reason) for r in found if r.status != "completed"] == [("cancelled", "budget")]
    assert collect()[0] == 0
    assert {r.status for r in load(tmp_path / "run")} == {"completed"}


def test_more_failures_than_are_allowed_stop_the_run_and_fewer_do_not(
    collect: Command, tmp_path: Path
) -> None:
    def half(body: dict[str, Any], n: int) -> Any:
        return "42" if n % 2 else (500, {}, {"error": {"message": "no"}})

    code, said = collect("--max-failure-rate", "0.3", reply=half)
    assert code == 1
    assert "10 of 20 rollouts failed, more than --max-failure-rate 0.3" in said
    assert 20 <= len(list(load(tmp_path / "run"))) <= 20 + 5  # one runs, four wait for the disk
    assert collect("--max-failure-rate", "0.6", reply=half)[0] == 1
    assert len(list(load(tmp_path / "run"))) == 40


def test_a_rate_is_judged_by_the_failures_of_this_call_alone(collect: Command, tmp_path: Path) -> None:
    assert collect(reply=lambda body, n: {"choices": []})[0] == 1
    assert collect("--max-failure-rate", "0")[0] == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--max-failure-rate", "2"), "--max-failure-rate: max_failure_rate: expected `float` <= 1.0"),
        (("--budget-tokens", "0"), "--budget-tokens: budget.tokens: expected `int` >= 1"),
        (
            ("--env-concurrency", "nowhere=2"),
            "--env-concurrency nowhere: unknown env",
        ),
        (
            ("--agent-concurrency", "nowhere=2"),
            "--agent-concurrency nowhere: unknown agent",
        ),
        (
            ("--env-concurrency", "chat"),
            "--env-concurrency 'chat': expected NAME=N, such as --env-concurrency chat=8",
        ),
        (
            ("--workers", "9", "--concurrency", "2"),
            "--workers 9: with --concurrency 2 some would have nothing to do",
        ),
        (("--set", "concurrency=many"), "concurrency: invalid enum value 'many' (known: auto, unlimited)"),
    ],
)
def test_what_makes_no_sense_is_refused(collect: Command, flags: tuple[str, ...], says: str) -> None:
    code, said = collect(*flags)
    assert code == 2
    assert says in said


def test_the_limit_of_an_environment_holds_and_the_others_go_on(collect: Command, tmp_path: Path) -> None:
    rows = [
        {"prompt": f"what is {n}", "env": "tool" if n < 20 else "problem", "answer": "42"} for n in range(24)
    ]
    write_jsonl(tmp_path / "tasks.jsonl", rows)
    tools = most = 0
    lock = threading.Lock()

    def is_tool(body: dict[str, Any]) -> bool:
        return int(body["messages"][0]["content"].split()[-1]) < 20

    def reply(body: dict[str, Any], n: int) -> str:
        nonlocal tools, most
        with lock:
            tools += is_tool(body)
            most = max(most, tools)
        threading.Event().wait(0.02)
        with lock:
            tools -= is_tool(body)
        return "42"

    assert collect("--env-concurrency", "tool=2", reply=reply, concurrency=8)[0] == 0
    assert most == 2
    assert collect.server is not None
    overtaking = [place for place, body in enumerate(collect.server.bodies) if not is_tool(body)]
    assert len(overtaking) == 4
    assert max(overtaking) < 12  # they are the last four rows


@pytest.mark.slow
def test_auto_grows_until_the_server_is_overloaded_and_loses_nothing(
    collect: Command, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": f"what is {n}", "answer": "42"} for n in range(600)])
    refused = 0

    def reply(body: dict[str, Any], n: int) -> Any:
        nonlocal refused
        assert collect.server is not None
        if collect.server.in_flight <= 30:
            return "42"
        refused += 1
        return 429, {}, {"error": {"message": "too many"}}

    flags = ("--concurrency", "auto", "--call-retries", "8", "--set", "policy.backoff_s=0.02")
    assert collect(*flags, reply=reply, latency_s=0.02)[0] == 0
    assert len(list(load(tmp_path / "run"))) == 600
    assert collect.server is not None
    assert collect.server.peak_in_flight > 16  # where it begins
    assert 0 < refused < 300


def test_an_outage_that_lasts_stops_the_run_and_the_same_command_goes_on(
    collect: Command, tmp_path: Path
) -> None:
    def dies(body: dict[str, Any], n: int) -> Any:
        return "42" if n < 10 else (500, {}, {"error": {"message": "I am no more"}})

    code, said = collect("--max-outage", "0.2", reply=dies)
    assert code == 1
    assert "not done (" in said
    assert len(list(load(tmp_path / "run"))) < 30  # the rest was not even tried
    assert collect()[0] == 0


def test_room_is_made_for_as_many_connections_as_there_are_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda what: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda what, new: limits.__setitem__(slice(None), new))
    assert make_room(100) is None
    assert limits == [1024, 4096]
    assert make_room(2000) is None
    assert limits == [2000 + SPARE, 4096]
    said = make_room(10_000)
    assert limits == [4096, 4096]
    assert said is not None
    assert "allows 4,096 open files to a process, too few for 10,000 episodes" in said
