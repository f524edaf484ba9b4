"""Capture levels: what is asked of the endpoint, what is kept, and that a record never says more than it holds."""

from __future__ import annotations

import base64
import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_server import ModelServer, chat_reply, write_jsonl
from windrow.cli.main import main

ROWS = [{"prompt": "What is 40 + 2?", "answer": 42}]
IDS, LOGPROBS, PROMPT = [504, 2988, 2], [-0.5, -0.25, -0.125], [1, 2, 3, 4]


def exact(body: dict[str, Any], n: int) -> dict[str, Any]:
    """What an endpoint answers that gives whatever it is asked for."""
    reply = chat_reply(body, "42", n)
    if body.get("logprobs"):
        reply["choices"][0]["logprobs"] = {
            "content": [{"token": "x", "logprob": value} for value in LOGPROBS]
        }
    if body.get("return_token_ids"):
        reply["choices"][0]["token_ids"] = IDS
        reply["prompt_token_ids"] = PROMPT
        reply["usage"] = {"prompt_tokens": len(PROMPT), "completion_tokens": len(IDS)}
    return reply


def collected(
    tmp_path: Path, reply: Any, *flags: str, expect: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The one line of a run, and the body of its request."""
    tasks = write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    with ModelServer(reply) as server:
        arguments = ["collect", str(tasks), "--model", "stub", "--base-url", server.url, "--quiet"]
        assert main([*arguments, "--out", str(tmp_path / "run"), *flags]) == expect
        body = server.bodies[0]
    return json.loads((tmp_path / "run" / "rollouts.jsonl").read_bytes()), body


def unpacked(kind: str, text: str) -> list[Any]:
    return array(kind, base64.b64decode(text)).tolist()


def test_text_is_the_default_and_asks_for_nothing_more(tmp_path: Path) -> None:
    line, body = collected(tmp_path, exact)
    assert line["capture"] == "text"
    assert line["turns"][0]["tokens"] is None
    assert not {"logprobs", "top_logprobs", "return_token_ids"} & set(body)


def test_tokens_keeps_the_ids_of_prompt_and_sample_and_their_logprobs(tmp_path: Path) -> None:
    line, body = collected(tmp_path, exact, "--capture", "tokens")
    assert (body["logprobs"], body["top_logprobs"], body["return_token_ids"]) == (True, 0, True)
    tokens = line["turns"][0]["tokens"]
    assert line["capture"] == "tokens"
    assert unpacked("i", tokens["output"]) == IDS
    assert unpacked("i", tokens["prompt_new"]) == PROMPT
    assert unpacked("f", tokens["logprobs"]) == LOGPROBS


def test_logprobs_keeps_logprobs_alone(tmp_path: Path) -> None:
    line, body = collected(tmp_path, exact, "--capture", "logprobs")
    assert "return_token_ids" not in body
    assert line["capture"] == "logprobs"
    assert line["turns"][0]["tokens"]["output"] == ""
    assert unpacked("f", line["turns"][0]["tokens"]["logprobs"]) == LOGPROBS


@pytest.mark.parametrize(
    ("missing", "reached"),
    [
        ("prompt_token_ids", "logprobs"),
        ("token_ids", "logprobs"),
        ("logprobs", "text"),
        ("one id", "logprobs"),
    ],
)
def test_a_record_never_says_tokens_where_something_is_missing(
    tmp_path: Path, missing: str, reached: str
) -> None:
    def lacking(body: dict[str, Any], n: int) -> dict[str, Any]:
        reply = exact(body, n)
        choice = reply["choices"][0]
        reply.pop(missing, None)
        choice.pop(missing, None)
        if missing == "one id":
            choice["token_ids"] = IDS[:-1]
        return reply

    line, _ = collected(tmp_path, lacking, "--capture", "tokens", "--set", "policy.probe=false")
    assert line["capture"] == reached


def test_none_keeps_outcome_scores_timing_and_usage_but_nothing_that_was_said(tmp_path: Path) -> None:
    line, _ = collected(tmp_path, exact, "--capture", "none")
    assert line["capture"] == "none"
    assert (line["messages"], line["state"]) == ([], None)
    assert (line["status"], line["reward"], line["grade"]) == ("completed", 1.0, "graded")
    assert line["usage"]["completion_tokens"] > 0
    turn = line["turns"][0]
    assert (turn["reads"], turn["writes"], turn["tool_calls"]) == ([], None, [])


def test_what_was_recorded_without_messages_is_not_graded_again_as_wrong(tmp_path: Path) -> None:
    collected(tmp_path, exact, "--capture", "none")
    with ModelServer(exact) as server:
        arguments = [
            "collect",
            str(tmp_path / "tasks.jsonl"),
            "--model",
            "stub",
            "--base-url",
            server.url,
            "--quiet",
        ]
        arguments += [
            "--out",
            str(tmp_path / "run"),
            "--capture",
            "none",
            "--scorer",
            "contains",
            "--regrade",
        ]
        assert main(arguments) == 1
    grading = json.loads((tmp_path / "run" / "scores.jsonl").read_bytes())
    assert "without its messages" in grading["error"]["message"]
    assert grading["scores"] == [{}]


def test_the_level_is_no_part_of_the_identity(tmp_path: Path) -> None:
    text, _ = collected(tmp_path / "a", exact)
    tokens, _ = collected(tmp_path / "b", exact, "--capture", "tokens")
    assert text["id"] == tokens["id"]


def test_a_policy_that_has_no_tokens_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    script = tmp_path / "script.yaml"
    script.write_text("replies: [{reply: '42'}]", encoding="utf-8")
    assert main(["collect", str(tasks), "--model", f"scripted:{script}", "--capture", "tokens"]) == 2
    assert "can be captured as none, text" in capsys.readouterr().err
