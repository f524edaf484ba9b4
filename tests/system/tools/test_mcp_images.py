"""Images that an MCP tool answers with: shown to the model in each dialect's own form, kept as blobs, exported."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.command_process import Project
from tests.support.hud_rows import STDIO, v4
from tests.support.image_env import picture
from windrow.util.blobs import name_of_blob

ENCODED = base64.b64encode(picture(7)).decode()
URL = f"data:image/png;base64,{ENCODED}"
CALLS = [{"what": "up"}, {"what": "large"}, {"what": "lie"}]
NOT_SHOWN = "[image, image/png: not shown (up to 20 of 5 MiB are: PNG, JPEG, GIF, WebP)]"
RESULTS = ["you look up", f"you look large\n{NOT_SHOWN}", f"you look lie\n{NOT_SHOWN}"]


def openai(body: dict[str, Any], n: int) -> dict[str, Any]:
    calls = [
        {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": "look", "arguments": json.dumps(arguments)},
        }
        for number, arguments in enumerate(CALLS)
    ]
    looked = any(message["role"] == "tool" for message in body["messages"])
    message = {"role": "assistant", "content": "blue", **({} if looked else {"tool_calls": calls})}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def anthropic(body: dict[str, Any], n: int) -> dict[str, Any]:
    uses = [
        {"type": "tool_use", "id": f"c{number}", "name": "look", "input": arguments}
        for number, arguments in enumerate(CALLS)
    ]
    content = [{"type": "text", "text": "blue"}] if len(body["messages"]) > 1 else uses
    return {"content": content, "stop_reason": "end_turn"}


def responses(body: dict[str, Any], n: int) -> dict[str, Any]:
    calls = [
        {"type": "function_call", "call_id": f"c{number}", "name": "look", "arguments": json.dumps(arguments)}
        for number, arguments in enumerate(CALLS)
    ]
    text = {"type": "message", "content": [{"type": "output_text", "text": "blue"}]}
    return {"status": "completed", "output": [text] if len(body["input"]) > 1 else calls}


SEEN: dict[str, list[Any]] = {
    "openai": [
        *[{"role": "tool", "content": t, "tool_call_id": f"c{n}"} for n, t in enumerate(RESULTS)],
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]},
    ],
    "anthropic": [
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c0",
                    "content": [
                        {"type": "text", "text": RESULTS[0]},
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": ENCODED},
                        },
                    ],
                },
                *[
                    {"type": "tool_result", "tool_use_id": f"c{n}", "content": t}
                    for n, t in enumerate(RESULTS)
                    if n
                ],
            ],
        }
    ],
    "responses": [
        {
            "type": "function_call_output",
            "call_id": "c0",
            "output": [
                {"type": "input_text", "text": RESULTS[0]},
                {"type": "input_image", "image_url": URL},
            ],
        },
        *[
            {"type": "function_call_output", "call_id": f"c{n}", "output": t}
            for n, t in enumerate(RESULTS)
            if n
        ],
    ],
}


@pytest.mark.parametrize("reply", [openai, anthropic, responses])
def test_an_image_of_an_mcp_tool_reaches_the_model_the_record_and_the_export(
    reply: Callable[..., Any], in_process_project: Callable[..., Project]
) -> None:
    dialect = reply.__name__
    own = in_process_project(reply)
    own.tasks([v4("text", STDIO, id="a")])
    done = own.collect("--trust-rows", "--dialect", dialect)
    assert done.code == 0, done.err
    assert own.server is not None
    last = own.server.bodies[-1]
    sent = last["input" if dialect == "responses" else "messages"]
    assert sent[-len(SEEN[dialect]) :] == SEEN[dialect]

    [rollout] = own.rollouts()
    image = {"blob": name_of_blob(picture(7)), "media_type": "image/png", "width": 8, "height": 6}
    results = [message for message in rollout.messages if message.role == "tool"]
    assert results[0].content == [{"type": "text", "text": RESULTS[0]}, image]
    assert [message.content for message in results[1:]] == RESULTS[1:]
    [run] = [manifest.parent for manifest in own.path.rglob("run.json")]
    assert [file.read_bytes() for file in (run / "blobs").rglob("*") if file.is_file()] == [picture(7)]

    assert own.windrow("export", str(run), "--to", "hud", "-o", "hud.jsonl").code == 0
    [line] = [json.loads(text) for text in (own.path / "hud.jsonl").read_text().splitlines()]
    assert line["trace"][0]["tool_calls"][0]["result"] == [{"type": "text", "text": RESULTS[0]}, image]
