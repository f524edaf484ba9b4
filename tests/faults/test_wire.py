"""A server that breaks off, garbles, stalls or floods: the rollout that met it fails, and nothing else does.

For each: what the command says and its exit code, what stands on disk, and that the same command finishes the run once
the server is well.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable

import pytest

from tests.faults.conftest import GOOD, MODELS, ROWS, Bench, Door
from tests.support.model_server import write_jsonl
from tests.support.raw_server import WireRequest, WireServer, completion, dripping, http, resetting

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BODY = json.dumps(completion("42")).encode()


def chunked(*parts: bytes) -> bytes:
    return (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts)
    )


def packed(body: bytes) -> bytes:
    return http(200, body, {"Content-Encoding": "gzip", "Content-Type": "application/json"})


BREAKS = {
    "reset at once": (resetting(), "infra/transport", ""),
    "reset in the headers": (resetting(HEAD), "infra/transport", ""),
    "reset in the body": (
        resetting(HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY[:20]),
        "infra/transport",
        "",
    ),
    "closed at once": (b"", "infra/transport", ""),
    "closed in the headers": (HEAD, "infra/transport", ""),
    "fewer bytes than said": (HEAD + b"Content-Length: 9999\r\n\r\n" + BODY, "infra/transport", ""),
    "a chunk that is cut": (chunked(BODY[:20])[:-9], "infra/transport", ""),
    "chunks without an end": (chunked(BODY), "infra/transport", ""),
    "a chunk of no size": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "infra/transport", ""),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "infra/transport", ""),
    "an endless header": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", "infra/transport", ""),
    "two lengths": (HEAD + b"Content-Length: 5\r\nContent-Length: 7\r\n\r\n{}", "infra/transport", ""),
    "broken gzip": (packed(b"\x1f\x8b" + b"no gzip"), "infra/transport", ""),
    "cut gzip": (packed(gzip.compress(BODY)[:-12]), "policy/bad_reply", ""),
    "wrong JSON": (http(200, b'{"choices": [{"message": '), "policy/bad_reply", "not a chat completion"),
    "an empty body": (http(200, b""), "policy/bad_reply", "an empty body"),
    "HTML": (http(200, b"<html>Bad gateway</html>"), "policy/bad_reply", "answered HTML"),
    "no choices": (http(200, b'{"choices": []}'), "policy/bad_reply", "it has no choices"),
    "not UTF-8": (http(200, b'{"choices": [{"message": {"content": "\xff"}}]}'), "policy/bad_reply", "utf-8"),
    "UTF-16": (http(200, json.dumps(completion("42")).encode("utf-16")), "policy/bad_reply", ""),
    "always 429": (
        http(429, {"error": {"message": "slow down"}}, {"Retry-After": "0"}),
        "infra/http_429",
        "slow",
    ),
    "always 500": (http(500, b"oops"), "infra/http_500", "oops"),
    "a status of its own": (
        b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",
        "infra/http_999",
        "an empty body",
    ),
}


@pytest.mark.parametrize("fault", BREAKS)
def test_a_reply_that_breaks_fails_its_rollout_alone_and_the_same_command_finishes_the_run(
    fault: str, bench: Bench, served: Callable[..., WireServer]
) -> None:
    sent, kind, says = BREAKS[fault]
    door = Door(sent)
    served(door)
    ended = bench.collect()
    assert ended.code == 1
    assert "5 of 6 done" in ended.err
    assert "1 not done (failed): the same command continues" in ended.err
    assert f"1 × {kind}, such as: " in ended.err
    assert says in ended.err
    before = bench.log
    lines = {line["task"]["key"]: line for line in bench.lines()}
    assert len(lines) == len(bench.lines()) == 6
    assert (lines["q3"]["status"], lines["q3"]["reward"], lines["q3"]["grade"]) == ("failed", None, "none")
    assert {line["reward"] for key, line in lines.items() if key != "q3"} == {1.0}

    door.fault = None
    assert bench.collect().code == 0
    assert bench.log.startswith(before)
    assert len(bench.lines()) == 7
    assert {key: rollout.attempt for key, rollout in bench.finals().items() if rollout.attempt > 1} == {
        "q3": 2
    }
    assert {rollout.reward for rollout in bench.finals().values()} == {1.0}


def test_a_reply_that_drips_is_ended_by_the_time_of_a_call(
    bench: Bench, served: Callable[..., WireServer]
) -> None:
    write_jsonl(bench.path / "tasks.jsonl", ROWS[3:4])  # alone: no other call has to do with so little time
    door = Door(dripping(GOOD, pause_s=0.05))
    server = served(door)
    ended = bench.collect("--call-timeout", "0.5", "--call-retries", "5")
    assert ended.code == 1
    assert "1 × infra/call_timeout, such as: no answer within 0.5 s" in ended.err
    assert server.count("/chat/completions") <= 1  # what takes too long is not asked again at once
    door.fault = None
    write_jsonl(bench.path / "tasks.jsonl", ROWS)
    assert bench.collect("--call-retries", "5").code == 0
    assert len(bench.lines()) == 7


def test_a_storm_of_429_is_waited_out_as_the_server_asks(
    bench: Bench, served: Callable[..., WireServer]
) -> None:
    storm = http(429, {"error": {"message": "slow down"}}, {"Retry-After": "0.05"})
    left = iter(range(20))
    served(lambda request: MODELS if request.method == "GET" else GOOD if next(left, None) is None else storm)
    ended = bench.collect("--call-retries", "20")
    assert ended.code == 0
    assert [line["status"] for line in bench.lines()] == ["completed"] * 6
    assert sum(line["turns"][0]["retries"] for line in bench.lines()) == 20


def test_a_server_that_fails_every_other_call_fails_no_rollout(
    bench: Bench, served: Callable[..., WireServer]
) -> None:
    calls = iter(range(1000))

    def answer(request: WireRequest) -> bytes:
        if request.method == "GET":
            return MODELS
        return GOOD if next(calls) % 2 else http(500, b"oops")

    server = served(answer)
    assert bench.collect("--concurrency", "1").code == 0
    assert [line["turns"][0]["retries"] for line in bench.lines()] == [1] * 6
    assert server.count("/chat/completions") == 12


def test_a_server_that_closes_after_each_reply_is_served_all_the_same(
    bench: Bench, served: Callable[..., WireServer]
) -> None:
    old = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + BODY  # its end is the connection's
    served(lambda request: MODELS if request.method == "GET" else old)
    assert bench.collect("--call-retries", "0").code == 0
    assert {line["reward"] for line in bench.lines()} == {1.0}


KEPT_OPEN = GOOD.replace(b"Connection: close\r\n", b"")


@pytest.mark.parametrize("flags", [("--concurrency", "1"), ("--concurrency", "6")])
def test_a_connection_that_was_closed_between_two_calls_fails_neither(
    flags: tuple[str, ...], bench: Bench, served: Callable[..., WireServer]
) -> None:
    """The reply says nothing of it: the client may find out only when it sends the next request."""
    assert KEPT_OPEN != GOOD
    server = served(lambda request: MODELS if request.method == "GET" else KEPT_OPEN)
    assert bench.collect("-k", "4", "--call-retries", "0", *flags).code == 0
    assert len(bench.lines()) == 24
    assert {line["reward"] for line in bench.lines()} == {1.0}
    assert server.connections >= 24


def test_connections_are_used_again(bench: Bench, served: Callable[..., WireServer]) -> None:
    server = served(lambda request: MODELS if request.method == "GET" else KEPT_OPEN, keep_alive=True)
    assert bench.collect("-k", "4", "--call-retries", "0", "--concurrency", "2").code == 0
    assert len(bench.lines()) == 24
    assert server.connections <= 4


def test_a_redirect_is_not_followed_and_is_told_at_the_start(
    bench: Bench, served: Callable[..., WireServer]
) -> None:
    served(lambda request: http(307, b"", {"Location": "http://127.0.0.1:9/v1"}))
    ended = bench.collect()
    assert ended.code == 1
    assert "/models answers with a redirect (307); give the URL it leads to" in ended.err
    assert bench.lines() == []


def test_a_redirect_in_mid_run_is_final_for_its_rollout(
    bench: Bench, served: Callable[..., WireServer]
) -> None:
    door = Door(http(307, b"", {"Location": "http://127.0.0.1:9/v1"}))
    server = served(door)
    ended = bench.collect()
    assert ended.code == 1
    assert "1 failed for good: --redo status=failed runs them again" in ended.err
    assert "1 × policy/http_307" in ended.err
    door.fault = None
    assert bench.collect("--redo", "status=failed").code == 0
    assert server.count("/chat/completions") == 7
    assert len(bench.lines()) == 7
