"""Before the first rollout the endpoint is asked whether it can serve the run; if not, nothing is collected."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.support.collect_helpers import collected, lines
from tests.support.fake_clock import LIMIT_S, time_passes
from tests.support.raw_server import WireRequest, completion, http, wire
from windrow.errors import EndpointError

TASK = [{"prompt": "2 + 2?", "answer": "4"}]


@pytest.fixture(autouse=True)
def no_key(monkeypatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


async def refused(tmp_path, url: str, **options: Any) -> str:
    """The words in which the run was refused; nothing was collected."""
    run = tmp_path / "run"
    with pytest.raises(EndpointError) as refusal:
        await collected(TASK, **{"model": "stub", "base_url": url, "out": str(run), **options})
    assert lines(run) == []
    assert (refusal.value.kind, "Traceback" in str(refusal.value)) == ("endpoint", False)
    return str(refusal.value)


async def test_a_refused_connection_says_so(tmp_path) -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))  # bound and not listening: the port is nobody else's, and it refuses
        said = await refused(tmp_path, f"http://127.0.0.1:{door.getsockname()[1]}/v1")
    assert "cannot reach http://127.0.0.1:" in said
    assert "Is the server running?" in said


async def test_a_missing_key_names_the_variable(stub, tmp_path) -> None:
    server = stub(api_key="sk-right-key")
    said = await refused(tmp_path, server.url)
    assert "401" in said
    assert "no key was sent: set OPENAI_API_KEY" in said
    assert server.completions == 0


async def test_a_wrong_key_says_check_the_key_and_does_not_show_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-key-1234")
    denied = {"error": {"message": "Incorrect API key: sk-wrong-key-1234"}}
    async with wire(lambda request: http(403, denied)) as server:
        said = await refused(tmp_path, server.url)
        assert len(server.requests) == 1
    assert "403" in said
    assert "check the key" in said
    assert "sk-wrong-key-1234" not in said


async def test_an_unknown_model_lists_what_the_endpoint_serves(stub, tmp_path) -> None:
    unknown = (404, {}, {"error": {"message": "The model `stub` does not exist", "code": "model_not_found"}})
    server = stub(lambda body, n: unknown, models=["alpha", "beta"])
    said = await refused(tmp_path, server.url)
    assert "model 'stub' is not known" in said
    assert "It serves: alpha, beta" in said


async def test_html_for_the_models_asks_whether_the_url_is_right(tmp_path) -> None:
    async with wire(lambda request: http(200, b"  <!doctype html><title>Welcome</title>")) as server:
        said = await refused(tmp_path, server.url)
        assert server.count("/chat/completions") == 0
    assert "answered HTML, not JSON" in said
    assert "/v1" in said


async def test_an_endpoint_that_hangs_is_given_up(tmp_path) -> None:
    async with wire(lambda request: time_passes()) as server:
        said = await refused(tmp_path, server.url, sets=[f"policy.probe_timeout_s={LIMIT_S}"])
        assert len(server.requests) == 1
    assert "did not answer within 100 s" in said
    assert "policy.probe_timeout_s" in said


async def test_a_reply_that_never_ends_is_given_up_too(tmp_path) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    async with wire(lambda request: head) as server:
        said = await refused(tmp_path, server.url, sets=["policy.probe_timeout_s=0.5"])
    assert "cannot reach" in said or "did not answer" in said


async def test_a_redirect_is_not_followed(tmp_path) -> None:
    async with wire(lambda request: http(308, b"", {"Location": "/v2/models"})) as server:
        said = await refused(tmp_path, server.url)
        assert len(server.requests) == 1
    assert "redirect (308)" in said


def without_models(answer: bytes):
    def handle(request: WireRequest) -> bytes:
        return http(404, b"not found") if request.path.endswith("/models") else answer

    return handle


async def test_without_a_list_of_models_one_call_is_made_instead(tmp_path) -> None:
    async with wire(without_models(http(200, completion("4")))) as server:
        [rollout] = await collected(TASK, model="stub", base_url=server.url, out=str(tmp_path / "run"))
        assert server.count("/chat/completions") == 2
        asked, real = (request.json for request in server.requests[1:])
        assert (asked["model"], asked["max_tokens"]) == ("stub", 1)
        assert "max_tokens" not in real
    assert rollout.reward == 1.0


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"", b'{"status": "ok"}', b'{"choices": []}'])
async def test_that_one_call_must_be_answered_with_a_completion(tmp_path, body) -> None:
    async with wire(without_models(http(200, body))) as server:
        said = await refused(tmp_path, server.url)
    assert "Is the base URL right?" in said


@pytest.mark.parametrize("status", [400, 404])
async def test_that_one_call_tells_an_unknown_model_too(tmp_path, status) -> None:
    answer = http(status, {"error": {"message": "model 'stub' not loaded"}})
    async with wire(without_models(answer)) as server:
        said = await refused(tmp_path, server.url)
    assert "model 'stub' is not known" in said


async def test_an_overloaded_endpoint_is_not_refused(tmp_path) -> None:
    answers = iter([http(503, b"busy"), http(503, b"busy"), http(200, completion("4"))])
    async with wire(lambda request: next(answers)) as server:
        [rollout] = await collected(TASK, model="stub", base_url=server.url, out=str(tmp_path / "run"))
    assert rollout.reward == 1.0


async def test_without_the_probe_nothing_is_asked_beforehand(stub, tmp_path) -> None:
    server = stub("4", models=[])
    options = {"model": "stub", "base_url": server.url, "out": str(tmp_path / "run")}
    [rollout] = await collected(TASK, **options, sets=["policy.probe=false"])
    assert (rollout.reward, server.requests) == (1.0, {"/v1/chat/completions": 1})


async def test_when_all_is_done_the_endpoint_is_not_asked(stub, tmp_path) -> None:
    server = stub("4")
    options = {"model": "stub", "base_url": server.url, "out": str(tmp_path / "run")}
    assert len(await collected(TASK, **options)) == 1
    server.stop()
    assert await collected(TASK, **options) == []
