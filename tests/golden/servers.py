"""Two servers for the golden runs that need one when they are made: a vLLM whose tokens are characters, and a NeMo Gym.

They answer by what they are asked, never by when; nothing of them is needed to read or resume a run.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = Any
Answer = Callable[[str, Json, str], tuple[int, Json]]
START, END = 1, 2


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """The address of a server that answers every request with what `answer` makes of its path and body.

    The third argument of `answer` is that address.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(None)

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body: Json) -> None:
            status, said = answer(self.path, body, url)
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# -- vLLM: an id a character; its template drops the reasoning of earlier replies, which makes sequences fork


def vllm(path: str, body: Json, url: str) -> tuple[int, Json]:
    if path == "/v1/models":
        return 200, {"data": [{"id": "stub"}]}
    if path == "/version":
        return 200, {"version": "0.20.0"}
    if path == "/v1/chat/completions":
        return 200, _chat(body)
    if path == "/v1/completions":
        return 200, _scored(body)
    if path == "/detokenize":
        return 200, {"prompt": "".join(map(chr, body["tokens"]))}
    return 404, {"error": {"message": "File Not Found"}}


def _chat(body: Json) -> Json:
    messages = body["messages"]
    prompt = [number for message in messages for number in (START, *map(ord, str(message["content"])), END)]
    prompt += [START]
    turn = sum(message["role"] == "assistant" for message in messages)
    thinks = "think" in str(messages[0]["content"])
    said = f"Reply {turn} to {len(prompt)} ids{'.' * body.get('seed', 1)}"[: body.get("max_tokens", 99)]
    text = f"<think>hm</think>{said}" if thinks else said
    ids = [*map(ord, text), END]
    top = body.get("top_logprobs", 0)
    entries = [
        {**_likely(number, place, 0), "top_logprobs": [_likely(number, place, n) for n in range(top)]}
        for place, number in enumerate(ids)
    ]
    message = {"role": "assistant", "content": said, "reasoning": "hm" if thinks else None, "tool_calls": []}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": {"content": entries},
        "finish_reason": "stop",
        "token_ids": ids,
    }
    usage = {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(ids),
        "total_tokens": len(prompt) + len(ids),
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "stub",
        "choices": [choice],
        "usage": usage,
        "prompt_token_ids": prompt,
    }


def _likely(number: int, place: int, n: int) -> Json:
    return {"token": f"token_id:{number + n}", "logprob": -0.125 * (place % 5 + 1) - n, "bytes": []}


def _scored(body: Json) -> Json:
    ids = body["prompt"]
    places = [
        {str(number): {"logprob": -place / 64, "rank": 1, "decoded_token": "x"}}
        for place, number in enumerate(ids)
    ]
    choice = {
        "index": 0,
        "text": "x",
        "logprobs": None,
        "finish_reason": "length",
        "prompt_logprobs": [None, *places[1:]],
    }
    usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1}
    return {"id": "cmpl-1", "object": "text_completion", "model": "stub", "choices": [choice], "usage": usage}


# -- NeMo Gym: a head server, and the agent `math` at the same address


def gym() -> Answer:
    """What is flaky fails the first time."""
    tried: set[str] = set()

    def answer(path: str, body: Json, url: str) -> tuple[int, Json]:
        if path == "/server_instances":
            place = {"host": "127.0.0.1", "port": int(url.rpartition(":")[2]), "url": url}
            kinds = {"math": "responses_api_agents", "resources": "resources_servers"}
            return 200, [
                {"process_name": name, "server_type": kind, "name": "impl", "pid": 1, **place}
                for name, kind in kinds.items()
            ]
        if path != "/run":
            return 404, {"detail": "Not Found"}
        prompt = body["responses_create_params"]["input"][0]["content"]
        if "flaky" in prompt and prompt not in tried:
            tried.add(prompt)
            return 500, "RuntimeError('no browser')"
        if "wrong" in prompt:
            return 422, {
                "detail": [{"type": "missing", "loc": ["body", "verifier_metadata"], "msg": "Field required"}]
            }
        return 200, answered(body, prompt)

    return answer


def answered(body: Json, prompt: str) -> Json:
    """What /run answers: two model calls with a tool between them, and the tokens of both."""
    total = str(sum(int(word) for word in prompt.replace("?", "").split() if word.isdigit()))
    first = {
        "prompt_token_ids": [1, 2, 3],
        "generation_token_ids": [4, 5],
        "generation_log_probs": [-0.5, -0.25],
    }
    second = {
        "prompt_token_ids": [1, 2, 3, 4, 5, 6],
        "generation_token_ids": [7],
        "generation_log_probs": [-0.125],
    }
    output = [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "add them"}]},
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "add",
            "arguments": '{"a": 1}',
            "id": "fc_1",
            "status": "completed",
            **first,
        },
        {"type": "function_call_output", "call_id": "c1", "output": total, "id": "fco_1"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": total, "annotations": []}],
            **second,
        },
    ]
    usage = {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10,
    }
    response = {
        "id": "resp_1",
        "created_at": 1700000000.0,
        "model": "served-model",
        "object": "response",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
        "incomplete_details": None,
    }
    return {
        "responses_create_params": body["responses_create_params"],
        "response": response,
        "reward": 0.5,
        "accuracy": 0.5,
        "judge": {"why": ["close"]},
    }


ANSWERS: dict[str, Callable[[], Answer]] = {"vllm": lambda: vllm, "gym": gym}
