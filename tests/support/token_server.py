"""A llama.cpp, vLLM or SGLang that knows its tokens by heart: an id a character, and one more for `ab`, so that text has two spellings.

It says what it is told to, as ids, and keeps the prompts that it was sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.raw_server import WireRequest, http

START, END, AB = "<s>", "<e>", "ab"
SPECIAL = {START: 1, END: 2}
MERGED = 3  # the id that the tokenizer makes of `ab`
LEFT_OUT = -7.0  # the logprob that the server tells only when it is asked for by its prefix

Messages = list[dict[str, Any]]


def as_ids(text: str, *, merge: bool = True) -> list[int]:
    """Text as the tokenizer splits it; without `merge`, as a model may have sampled it."""
    found = []
    while text:
        piece = next((name for name in SPECIAL if text.startswith(name)), None)
        if piece is not None:
            found.append(SPECIAL[piece])
        elif merge and text.startswith(AB):
            piece = AB
            found.append(MERGED)
        else:
            piece = text[0]
            found.append(ord(piece))
        text = text[len(piece) :]
    return found


def as_text(ids: Sequence[int]) -> str:
    names = {number: name for name, number in SPECIAL.items()} | {MERGED: AB}
    return "".join(names.get(number) or chr(number) for number in ids)


def plain(messages: Messages) -> str:
    """A template that keeps everything."""
    shown = [f"{START}{m['role']}:{thought(m)}{m['content']}{END}" for m in messages]
    return "".join(shown) + f"{START}assistant:"


def forgetful(messages: Messages) -> str:
    """A template that drops the reasoning of all replies before the last message, as many do."""
    return plain([{**m, "reasoning_content": ""} for m in messages])


def thought(message: dict[str, Any]) -> str:
    reasoning = message.get("reasoning_content")
    return f"<think>{reasoning}</think>" if reasoning else ""


def likeliest(number: int, k: int) -> list[dict[str, Any]]:
    """The sampled id is always the likeliest, and those after it the next."""
    return [{"id": number + n, "logprob": -0.5 - n} for n in range(k)]


def given_logprob(place: int) -> float:
    """Of any id after so many others."""
    return -place / 64


class TokenServer:
    """The handler of a `wire`: `says` are the ids of its replies, in order."""

    def __init__(
        self, says: Sequence[Sequence[int]], template: Callable[[Messages], str] = plain, **changes: Any
    ) -> None:
        self._says = [list(ids) for ids in says]
        self._template = template
        self._changes = changes  # of every completion
        self.prompts: list[list[int]] = []
        self.scored: list[tuple[list[int], int]] = []
        self.context_tokens = 8  # fewer than any prompt has
        self.down = False
        self.untold = False  # the likeliest tokens are left out
        self.vocabulary: str | None = None  # what any ids say in another one
        self.forced: list[dict[str, Any]] = []
        self.refuse: set[int] = set()  # ids that no grammar takes
        self.grammar_status = 200
        self.leave_out: set[int] = set()  # ids whose logprobs are not told with the reply

    def __call__(self, request: WireRequest) -> bytes:
        body = request.json if request.body else {}
        if self.down:
            return http(503, {"error": {"message": "busy"}})
        if request.path == "/v1/models":
            return http(200, {"data": [{"id": "stub"}]})
        if request.path == "/props":
            return http(200, {"default_generation_settings": {"n_ctx": self.context_tokens}})
        if request.path == "/apply-template":
            return http(200, {"prompt": self._template(body["messages"])})
        if request.path == "/tokenize":
            text = (
                self._template(body["messages"])
                if "messages" in body
                else body.get("content", body.get("prompt"))
            )
            return http(200, {"tokens": as_ids(text)})
        if request.path == "/detokenize":
            said = as_text(body["tokens"]) if self.vocabulary is None else self.vocabulary
            return http(200, dict.fromkeys(("content", "text", "prompt"), said))
        if request.path == "/v1/completions":
            return http(200, self._of_vllm(body))
        if request.path == "/inference/v1/generate":
            return http(200, self._of_vllm_generate(body))
        if request.path == "/generate":
            return http(200, self._of_sglang(body))
        if request.path == "/completion":
            if "grammar" in body or isinstance(body.get("logit_bias", [[""]])[0][0], int):
                return self._forced(body)
            return http(200, self._scores(body) if "logit_bias" in body else self._completion(body))
        return http(404, {"error": {"message": "File Not Found"}})

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        self.prompts.append(body["prompt"])
        ids = self._says.pop(0)
        told = [
            {"id": number, "logprob": -0.5, "top_logprobs": likeliest(number, body.get("n_probs", 0))}
            for number in ids
            if number not in self.leave_out
        ]
        return {
            "content": as_text(ids).removesuffix(END),
            "tokens": ids,
            "tokens_predicted": len(ids),
            "tokens_evaluated": len(body["prompt"]),
            "stop_type": "eos",
            "truncated": False,
            "completion_probabilities": told,
            "model": "stub",
            **self._changes,
        }

    def _of_vllm(self, body: dict[str, Any]) -> dict[str, Any]:
        self.prompts.append(body["prompt"])
        ids = self._says.pop(0)
        choice = {
            "text": as_text(ids).removesuffix(END),
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
            "logprobs": {"token_logprobs": [-0.5] * len(ids)},
            "finish_reason": "stop",
        }
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        return {"choices": [{**choice, **self._changes}], "usage": usage}

    def _of_vllm_generate(self, body: dict[str, Any]) -> dict[str, Any]:
        self.prompts.append(body["token_ids"])
        ids = self._says.pop(0)
        entries = {"content": [{"token": "x", "logprob": -0.5} for _ in ids]}
        return {
            "choices": [{"token_ids": ids, "logprobs": entries, "finish_reason": "stop", **self._changes}]
        }

    def _of_sglang(self, body: dict[str, Any]) -> dict[str, Any]:
        self.prompts.append(body["input_ids"])
        ids = self._says.pop(0)
        meta = {
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": [[-0.5, number, None] for number in ids],
        }
        return {
            "text": as_text(ids).removesuffix(END),
            "output_ids": ids,
            "meta_info": {**meta, **self._changes},
        }

    def _forced(self, body: dict[str, Any]) -> bytes:
        """Ids that a grammar or a bias makes it sample; a grammar ends at what `refuse` says, a bias at what it knows."""
        self.forced.append(body)
        wanted = [int(number) for number in re.findall(r"<\[(\d+)\]>", body.get("grammar", ""))]
        if "grammar" in body and (self.grammar_status != 200 or self.refuse & set(wanted)):
            return http(self.grammar_status if self.grammar_status != 200 else 500, {"error": "no"})
        ids = wanted or [number if (number := body["logit_bias"][0][0]) < 2**20 else 4]
        prompt = body["prompt"]
        told = [
            {
                "id": number,
                "logprob": given_logprob(len(prompt) + n),
                "top_logprobs": [] if self.untold else likeliest(number, body["n_probs"]),
            }
            for n, number in enumerate(ids)
            if number not in self.leave_out
        ]
        return http(
            200,
            {
                "content": as_text(ids),
                "tokens": ids,
                "tokens_predicted": len(ids),
                "tokens_evaluated": len(prompt),
                **({"completion_probabilities": told} if told else {}),
            },
        )

    def _scores(self, body: dict[str, Any]) -> dict[str, Any]:
        """Only when all are asked for does it tell of those that it left out."""
        self.scored.append((body["prompt"], body["n_probs"]))
        known = [{"id": 4, "logprob": -0.1}]
        if body["n_probs"] > 100_000:
            known += [{"id": number, "logprob": LEFT_OUT} for number in sorted(self.leave_out)]
        return {"completion_probabilities": [{"id": 97, "logprob": -9.0, "top_logprobs": known}]}
