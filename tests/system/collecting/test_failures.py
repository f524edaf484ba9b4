"""What goes wrong around a run: calls that fail, an endpoint that dies, a disk that fills. What was collected stays."""

from __future__ import annotations

import resource
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.command_process import PATIENCE_S, Project, prompt_of
from tests.support.model_server import ModelServer

pytestmark = pytest.mark.slow

ROWS = [{"id": f"q{n}", "prompt": f"what is {n}", "answer": "42"} for n in range(6)]


class Faulty:
    """Answers 42, but for one prompt with `fault` as long as it is set."""

    def __init__(self, fault: Any) -> None:
        self.fault = fault

    def __call__(self, body: dict[str, Any], n: int) -> Any:
        return self.fault if self.fault is not None and prompt_of(body) == "what is 3" else "42"


def failing(status: int, message: str = "no") -> Faulty:
    return Faulty((status, {}, {"error": {"message": message}}))


def home_with(project: Callable[..., Project], reply: Any, **options: Any) -> Project:
    home = project(reply, **options)
    home.tasks(ROWS)
    return home


def asked(home: Project) -> Counter[str]:
    return Counter(map(prompt_of, home.server.bodies))


def test_a_sample_whose_calls_keep_failing_leaves_the_others_alone_and_is_tried_again(
    in_process_project: Callable[..., Project],
) -> None:
    faulty = failing(503, "overloaded")
    home = home_with(in_process_project, faulty)
    flags = ("--call-retries", "2", "--retries", "1")
    ended = home.collect(*flags)
    assert ended.code == 1
    assert "5 of 6 done" in ended.err
    assert "1 not done (failed): the same command continues" in ended.err
    assert asked(home)["what is 3"] == 2 * 3  # two attempts of three calls each
    assert all(asked(home)[row["prompt"]] == 1 for row in ROWS if row["id"] != "q3")
    failed = [line for line in home.lines() if line["task"]["key"] == "q3"]
    assert [line["attempt"] for line in failed] == [1, 2]
    for line in failed:
        assert (line["status"], line["stop"], line["reward"], line["grade"]) == (
            "failed",
            "error",
            None,
            "none",
        )
        assert (line["error"]["owner"], line["error"]["kind"]) == ("infra", "http_503")
        assert line["error"]["retryable"]
        assert "overloaded" in line["error"]["message"]
        assert line["turns"][0]["retries"] == 2
        assert line["messages"][0]["content"] == "what is 3"
    assert [r.reward for r in home.rollouts()] == [1.0, 1.0, 1.0, None, 1.0, 1.0]
    assert "infra/http_503" in home.windrow("stats", "run").out

    faulty.fault = None
    ended = home.collect(*flags)
    assert ended.code == 0
    assert "5 done, 1 to retry" in ended.err
    assert [r.attempt for r in home.rollouts()] == [1, 1, 1, 3, 1, 1]
    assert {r.reward for r in home.rollouts()} == {1.0}
    assert home.server.completions == 5 + 6 + 1


def test_a_call_that_fails_now_and_then_is_one_attempt_with_its_retries_counted(
    in_process_project: Callable[..., Project],
) -> None:
    home = home_with(in_process_project, lambda body, n: (503, {}, "busy") if n < 3 else "42")
    assert home.collect("--concurrency", "1").code == 0
    first, *others = home.lines()
    assert (first["attempt"], first["turns"][0]["retries"]) == (1, 3)
    assert {line["turns"][0]["retries"] for line in others} == {0}
    assert home.server.completions == 6 + 3


def test_a_refused_request_is_final_for_its_sample_alone_until_redo(
    in_process_project: Callable[..., Project],
) -> None:
    faulty = failing(400, "I will not")
    home = home_with(in_process_project, faulty)
    for example in ("1 × policy/http_400, such as: ", ""):  # it is said by the call that saw it
        ended = home.collect("--retries", "3")
        assert ended.code == 1
        assert "1 failed for good: --redo status=failed runs them again" in ended.err
        assert example in ended.err
        assert asked(home)["what is 3"] == 1  # neither the call nor the rollout is tried again
    (failed,) = (r for r in home.rollouts() if r.status == "failed")
    assert failed.error is not None
    assert (failed.error.owner, failed.error.kind, failed.error.retryable) == ("policy", "http_400", False)
    assert (failed.reward, failed.attempt) == (None, 1)

    assert home.collect("--redo", "status=failed").code == 1
    assert asked(home)["what is 3"] == 2
    faulty.fault = None
    assert home.collect().code == 1  # still final
    assert home.collect("--redo", "status=failed").code == 0
    assert [r.attempt for r in home.rollouts()] == [1, 1, 1, 3, 1, 1]
    assert home.server.completions == 6 + 2
    assert home.collect("--redo", "status=failed").code == 0  # nothing is failed any more
    assert home.server.completions == 6 + 2


def test_an_endpoint_that_dies_in_mid_run_loses_nothing_and_another_takes_over(
    in_process_project: Callable[..., Project], stub: Callable[..., ModelServer]
) -> None:
    def reply(body: dict[str, Any], n: int) -> str:
        assert n < 12 or home.server.gone.wait(PATIENCE_S)
        return "42"

    home = home_with(in_process_project, reply)
    flags = ("-k", "8", "--concurrency", "4", "--call-retries", "1", "--max-outage", "0.5")
    running = home.start_collect(*flags)
    running.until(lambda: home.server.completions == 16, "twelve were answered, and four waited")
    home.server.stop()
    ended = running.wait()
    assert ended.code == 1
    assert "is paused, since call after call failed there" in ended.err
    assert "Run the same command again when the server is up" in ended.err
    done = {r.id for r in home.rollouts() if r.status == "completed"}
    lost = [r for r in home.rollouts() if r.status != "completed"]
    assert len(done) == 12
    assert 0 < len(lost) < 48 - len(done)  # the rest is not even tried
    assert {(r.status, r.reward, r.error and r.error.owner) for r in lost} == {("failed", None, "infra")}

    refused = home.collect(*flags)
    assert refused.code == 1
    assert "cannot reach" in refused.err
    assert "Is the server running?" in refused.err

    home.server = stub("42")
    assert home.collect(*flags).code == 0
    assert home.server.completions == 48 - len(done)
    assert {r.status for r in home.rollouts()} == {"completed"}


@pytest.mark.parametrize(
    ("options", "flags", "part"),
    [
        ({"api_key": "a-secret-key"}, (), "OPENAI_API_KEY"),
        ({"models": ["other"], "reply": (404, {}, {"error": {"message": "no such model"}})}, (), "other"),
        ({"models": [], "reply": (200, {"Content-Type": "text/html"}, "<html>hi</html>")}, (), "/v1"),
        ({"models": [], "latency_s": 30.0}, ("--set", "policy.probe_timeout_s=0.3"), "within 0.3 s"),
    ],
)
def test_an_endpoint_that_cannot_serve_the_run_is_found_out_before_the_first_rollout(
    options: dict[str, Any], flags: tuple[str, ...], part: str, in_process_project: Callable[..., Project]
) -> None:
    answer = options.pop("reply", "42")
    home = home_with(in_process_project, lambda body, n: answer, **options)
    ended = home.collect(*flags)
    assert ended.code == 1
    assert part in ended.err
    assert "Traceback" not in ended.err
    assert home.lines() == []


def test_a_key_reaches_the_endpoint_and_nothing_else(
    in_process_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-do-not-show-this"
    monkeypatch.setenv("MY_KEY", key)
    faulty = failing(400, f"the key {key} may not do this")
    home = home_with(in_process_project, faulty, api_key=key)
    ended = home.collect("--api-key-env", "MY_KEY", "--json")
    assert ended.code == 1
    assert home.server.headers[0]["Authorization"] == f"Bearer {key}"
    texts = [ended.out, ended.err, home.windrow("show", "run").out]
    texts += [path.read_text() for path in home.run.iterdir()]
    assert any("[redacted] may not do this" in text for text in texts)
    assert not any(key in text for text in texts)


def test_a_full_disk_stops_the_run_with_a_clear_error_and_what_was_collected_stays(
    in_process_project: Callable[..., Project],
) -> None:
    home = home_with(in_process_project, "42 " + "x" * 4000)
    room = 20_000

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    flags = ("-k", "4", "--concurrency", "2")
    for _ in range(2):  # a disk that is still full changes nothing
        ended = home.collect(*flags, preexec_fn=small_disk)
        assert ended.code == 1
        assert "cannot write run/rollouts.jsonl: File too large" in ended.err
        assert "What was collected before is safe" in ended.err
        assert "Traceback" not in ended.err
        kept = (home.run / "rollouts.jsonl").read_bytes()
        assert kept.endswith(b"\n")
        assert 0 < len(kept) <= room
        assert len(home.rollouts()) == kept.count(b"\n")
    assert not (home.run / "torn").exists()

    asked_before = home.server.completions
    assert home.collect(*flags).code == 0
    assert (home.run / "rollouts.jsonl").read_bytes().startswith(kept)
    assert home.server.completions - asked_before == 24 - kept.count(b"\n")
    assert len({r.id for r in home.rollouts()}) == len(home.lines()) == 24


def test_a_disk_too_full_for_the_tasks_sends_nothing(in_process_project: Callable[..., Project]) -> None:
    home = in_process_project()
    home.tasks({"prompt": f"what is {n} " + "x" * 1000, "answer": "42"} for n in range(50))
    ended = home.collect(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)))
    assert ended.code == 1
    assert "cannot write run/tasks.jsonl" in ended.err
    assert "Traceback" not in ended.err
    assert not home.server.requests
    assert home.collect().code == 0
    assert len(home.lines("tasks.jsonl")) == len(home.rollouts()) == 50


@pytest.mark.parametrize(
    ("out", "code", "why"),
    [
        ("tasks.jsonl", 2, "tasks.jsonl is a file"),
        ("tasks.jsonl/runs/one", 2, "tasks.jsonl is a file"),
        ("plain", 2, "thesis.txt"),
        ("x" * 300, 1, "File name too long"),
    ],
)
def test_an_out_that_cannot_be_written_is_refused_before_any_request(
    out: str, code: int, why: str, in_process_project: Callable[..., Project]
) -> None:
    home = home_with(in_process_project, "42")
    (home.path / "plain").mkdir()
    (home.path / "plain" / "thesis.txt").write_text("mine")
    before = sorted(path for path in home.path.rglob("*") if not path.name.startswith(".std"))
    for flags in ((), ("--overwrite",)):
        ended = home.collect("--out", out, *flags)
        assert ended.code == code
        assert out in ended.err
        assert why in ended.err
        assert not any(word in ended.err for word in ("Traceback", "internal error"))
    assert not home.server.requests
    assert sorted(path for path in home.path.rglob("*") if not path.name.startswith(".std")) == before


def test_a_log_that_cannot_be_opened_is_named(in_process_project: Callable[..., Project]) -> None:
    home = home_with(in_process_project, "42")
    assert home.collect("--limit", "1").code == 0
    (home.run / "rollouts.jsonl").rename(home.path / "kept.jsonl")
    (home.run / "rollouts.jsonl").mkdir()
    ended = home.collect()
    assert ended.code == 1
    assert "cannot open run/rollouts.jsonl" in ended.err
    assert "Traceback" not in ended.err
    (home.run / "rollouts.jsonl").rmdir()
    (home.path / "kept.jsonl").rename(home.run / "rollouts.jsonl")
    assert home.collect().code == 0
    assert home.server.completions == 6


def test_a_reader_that_goes_away_does_not_stop_the_run(in_process_project: Callable[..., Project]) -> None:
    home = home_with(in_process_project, "42")
    running = home.start_collect("-k", "20", "--json", stdout=subprocess.PIPE)
    running.process.stdout.close()
    assert running.wait().code == 0
    assert len(home.rollouts()) == 120
    assert running.err.count("BrokenPipe") <= 1
