"""`windrow doctor`: what is installed, and what a real endpoint says it can do."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_server import ModelServer, chat_reply
from windrow.cli.main import main


def marks(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What was looked at → ok, -- or !!."""
    return {line[4:16].strip(): line[:2] for line in capsys.readouterr().out.splitlines()}


def test_it_says_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    found = marks(capsys)
    assert found["windrow"] == "ok"
    assert found["[local]"] == "ok"
    assert found["[web]"] == "ok"


def test_it_says_which_browser_the_web_would_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    browser = tmp_path / "chromium"
    browser.write_text("#!/bin/sh\necho Chromium 150.0\n")
    browser.chmod(0o755)
    monkeypatch.setenv("WINDROW_CHROMIUM", str(browser))
    assert main(["doctor"]) == 0
    assert f"Chromium 150.0 {browser}" in capsys.readouterr().out
    browser.write_text("#!/bin/sh\nexit 127\n")
    assert main(["doctor"]) == 1
    assert marks(capsys)["browser"] == "!!"
    monkeypatch.setenv("WINDROW_CHROMIUM", str(tmp_path / "absent"))
    assert main(["doctor"]) == 0
    assert marks(capsys)["browser"] == "--"


def test_it_says_what_an_endpoint_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    def able(body: dict[str, Any], n: int) -> dict[str, Any]:
        reply = chat_reply(body, "5", n)
        choice = reply["choices"][0]
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": "5", "logprob": -0.1}]}
        if body.get("return_token_ids"):
            choice["token_ids"] = [5]
            reply["prompt_token_ids"] = [1, 2]
            reply["usage"] = {"prompt_tokens": 2, "completion_tokens": 1}
        if body.get("tools"):
            call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
            choice["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
        return reply

    with ModelServer(able) as server:
        assert main(["doctor", "--model", "stub", "--base-url", server.url]) == 0
    found = marks(capsys)
    wanted = ("endpoint", "server", "usage", "logprobs", "token ids", "capture", "seeds", "tools")
    assert {name: found[name] for name in wanted} == dict.fromkeys(wanted, "ok")


def test_a_plain_endpoint_is_fine_and_says_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    with ModelServer(lambda body, n: f"{n}") as server:
        assert main(["doctor", "--model", "stub", "--base-url", server.url]) == 0
    found = marks(capsys)
    assert found["endpoint"] == "ok"
    assert {found[name] for name in ("logprobs", "token ids", "capture", "seeds", "tools")} == {"--"}


def test_an_endpoint_that_refuses_is_a_finding_and_exit_1_and_no_connection_is_left(
    capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    with ModelServer("5", api_key="sk-right-key-123") as server:
        assert main(["doctor", "--model", "stub", "--base-url", server.url]) == 1
    assert marks(capsys)["endpoint"] == "!!"
    gc.collect()  # who goes without closing it says so
    assert [str(warning.message) for warning in recwarn if "Unclosed" in str(warning.message)] == []
