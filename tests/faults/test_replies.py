"""Replies of wrong types and lengths: each is a failed rollout that says why, or it is taken for what it is."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.faults.conftest import MODELS, Bench
from tests.support.model_server import write_jsonl
from tests.support.raw_server import WireRequest, WireServer, http
from windrow.cli.main import main

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
ENTRY = {"token": "4", "logprob": -0.5, "id": 17, "bytes": [52], "top_logprobs": []}
WHOLE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "model": "stub",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "42",
                "reasoning_content": "six times seven",
                "reasoning": "hm",
                "refusal": None,
                "tool_calls": [CALL],
            },
            "finish_reason": "stop",
            "logprobs": {"content": [ENTRY]},
            "token_ids": [17],
        }
    ],
    "prompt_token_ids": [1, 2, 3],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}},
}
WRONG: tuple[Any, ...] = (
    None, True, 0, -1, 2**31, 2**63, 2**70, 10**400, 0.5, -1e300, "", "x", "\ud83d", "4" * 5000, [], {}, [None], [[]],
    ["x"], [-1], [2**40], [1e300], [{}], {"text": 1}, [{"text": None}], {"logprob": None},
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield from places(below, (*path, key))


def put(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(document))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return copy


def serve_each(bench: Bench, served: Callable[..., WireServer], bodies: list[bytes]) -> WireServer:
    """A task for each body, answered with it."""
    write_jsonl(
        bench.path / "tasks.jsonl",
        ({"id": f"{n}", "prompt": f"{n}", "answer": "42"} for n in range(len(bodies))),
    )

    def answer(request: WireRequest) -> bytes:
        if request.method == "GET":
            return MODELS
        return http(200, bodies[int(request.json["messages"][0]["content"])])

    return served(answer)


@pytest.mark.parametrize("capture", ["text", "tokens"])
def test_a_field_of_any_wrong_type_is_that_rollouts_failure_or_does_no_harm(
    capture: str, bench: Bench, served: Callable[..., WireServer]
) -> None:
    cases = [(path, value) for path in places(WHOLE) for value in WRONG]
    bodies = [json.dumps(put(WHOLE, path, value)).encode() for path, value in cases]
    server = serve_each(bench, served, bodies)
    ended = bench.collect("--capture", capture, "--set", "policy.probe=false")
    assert ended.code == 1
    assert len(bench.lines()) == len(cases)  # every one is written down, and once
    for line in bench.lines():
        path, value = cases[int(line["task"]["key"])]
        error = line["error"] and f"{line['error']['owner']}/{line['error']['kind']}"
        assert error in (None, "policy/bad_reply"), (path, value, line["error"])
        assert (line["status"] == "failed") == (error is not None), (path, value)
    assert server.count("/chat/completions") == len(cases)
    assert len(bench.finals()) == len(cases)


def reply(ids: list[int] | None, prompt: list[int] | None, logprobs: list[float] | None) -> bytes:
    entries = (
        None if logprobs is None else {"content": [{"token": "x", "logprob": value} for value in logprobs]}
    )
    choice = {"message": {"content": "42"}, "finish_reason": "stop", "logprobs": entries, "token_ids": ids}
    return json.dumps({"choices": [choice], "prompt_token_ids": prompt}).encode()


def test_ids_and_logprobs_of_unlike_length_are_kept_only_as_far_as_they_are_sure(
    bench: Bench, served: Callable[..., WireServer]
) -> None:
    kept = {
        reply([1, 2], [7], [-0.1, -0.2]): ("tokens", 2, 2),
        reply([1], [7], [-0.1, -0.2]): ("logprobs", 0, 2),
        reply([1, 2, 3], [7], [-0.1, -0.2]): ("logprobs", 0, 2),
        reply([1, 2], None, [-0.1, -0.2]): ("logprobs", 0, 2),
        reply(None, [7], [-0.1]): ("logprobs", 0, 1),
        reply([1, 2], [7], None): ("text", 0, 0),
        reply([], [7], []): ("logprobs", 0, 0),
    }
    serve_each(bench, served, list(kept))
    assert bench.collect("--capture", "tokens", "--set", "policy.probe=false").code == 0
    found = []
    for line in sorted(bench.lines(), key=lambda line: int(line["task"]["key"])):
        tokens = line["turns"][0]["tokens"] or {"output": "", "logprobs": ""}
        sizes = [len(base64.b64decode(tokens[name])) // 4 for name in ("output", "logprobs")]
        found.append((line["capture"], *sizes))
    assert found == list(kept.values())


def test_doctor_says_what_it_found_whatever_the_server_sends(
    bench: Bench, served: Callable[..., WireServer], capsys: pytest.CaptureFixture[str]
) -> None:
    odd = [
        json.dumps(put(WHOLE, path, value)).encode()
        for path in places(WHOLE)
        for value in (None, 3, "x", [], [3])
    ]
    bodies = [*odd, b"", b"[]", b"null", b"{" * 5000, b"\xff"]
    served(lambda request: MODELS if request.method == "GET" else http(200, bodies.pop() if bodies else b""))
    while bodies:
        code = main(["doctor", "--base-url", bench.url, "--model", "stub"])
        said = capsys.readouterr()
        assert code in (0, 1)
        assert "endpoint" in said.out + said.err
        assert "internal error" not in said.err


LISTED = [
    b"",
    b"[]",
    b"null",
    b'{"data": 3}',
    b'{"data": [{"id": 3}]}',
    b"\xff\xfe",
    b'{"x": ' + b"[" * 90_000,
]


@pytest.mark.parametrize("listed", LISTED)
def test_a_list_of_models_that_is_none_is_as_good_as_no_list(
    listed: bytes, bench: Bench, served: Callable[..., WireServer]
) -> None:
    whole = json.dumps(WHOLE).encode()
    served(lambda request: http(200, listed if request.method == "GET" else whole))
    assert bench.collect().code == 0
    assert len(bench.lines()) == 6
