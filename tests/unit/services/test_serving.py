"""The scripted model server keeps its own promises, so that a red test points at windrow."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.support.model_server import ModelServer


def call(url: str, body: Any = None, key: str | None = None) -> tuple[int, dict[str, str], Any]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=10) as response:
            return response.status, dict(response.headers), json.load(response)
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, dict(problem.headers), json.load(problem)


def ask(server: ModelServer, text: str = "hello", key: str | None = None) -> tuple[int, dict[str, str], Any]:
    body = {"model": "stub", "messages": [{"role": "user", "content": text}]}
    return call(server.url + "/chat/completions", body, key)


def test_a_string_is_the_content_and_requests_are_kept_in_order(stub) -> None:
    server = stub(lambda body, n: f"{n}: {body['messages'][0]['content']}")
    replies = [ask(server, text)[2]["choices"][0]["message"]["content"] for text in ("a", "b")]
    assert replies == ["0: a", "1: b"]
    assert [body["messages"][0]["content"] for body in server.bodies] == ["a", "b"]
    assert server.requests == {"/v1/chat/completions": 2}


def test_a_tuple_is_sent_as_it_is(stub) -> None:
    server = stub(lambda body, n: (429, {"Retry-After": "7"}, {"error": {"message": "slow down"}}))
    status, headers, reply = ask(server)
    assert (status, headers["Retry-After"], reply["error"]["message"]) == (429, "7", "slow down")


def test_models_are_listed_and_a_key_is_required(stub) -> None:
    server = stub(models=["one", "two"], api_key="secret")
    assert call(server.url + "/models")[0] == 401
    assert ask(server, key="wrong")[0] == 401
    assert server.completions == 0
    rows = call(server.url + "/models", key="secret")[2]["data"]
    assert [row["id"] for row in rows] == ["one", "two"]
    assert ask(server, key="secret")[0] == 200


def test_a_raising_script_is_a_500_that_says_so(stub) -> None:
    status, _, reply = ask(stub(lambda body, n: 1 / 0))
    assert status == 500
    assert "ZeroDivisionError" in reply["error"]["message"]


def test_a_stopped_server_refuses_connections(stub) -> None:
    server = stub()
    server.stop()
    with pytest.raises(urllib.error.URLError):
        ask(server)
