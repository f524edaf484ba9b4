"""A policy that is exact about its tokens: an id a character, and a chat template of the test's choosing."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from windrow import Completion, Policy, Request
from windrow.policies.capture import packed
from windrow.policies.top_logprobs import TopToken, with_top
from windrow.records import Message, Tokens, Turn, Usage

START, END = 1, 2  # of a message; the policy samples END itself

Template = Callable[[Sequence[Message]], list[int]]


def ids_of(text: str) -> list[int]:
    return [ord(character) for character in text]


def chatml(messages: Sequence[Message]) -> list[int]:
    """Every message as START role: text END, then the opening of the reply."""
    found: list[int] = []
    for message in messages:
        found += [START, *ids_of(f"{message.role}:{message.text}"), END]
    return [*found, START, *ids_of("assistant:")]


class ExactPolicy(Policy):
    """Says what `answer` makes of a request, with a logprob of −0.5 for every id; keeps the prompts it was sent."""

    captures = frozenset({"none", "text", "logprobs", "tokens"})

    def __init__(
        self,
        answer: Callable[[Request], Any],
        template: Template = chatml,
        *,
        sampled: Callable[[str], list[int]] = lambda text: [*ids_of(text), END],
    ) -> None:
        self._answer = answer
        self._template = template
        self._sampled = sampled
        self.prompts: list[list[int]] = []
        self.outputs: list[list[int]] = []

    async def complete(self, request: Request) -> Completion:
        said = self._answer(request)
        completion = said if isinstance(said, Completion) else Completion(content=said)
        prompt, output = self._template(request.messages), self._sampled(completion.content or "")
        self.prompts.append(prompt)
        self.outputs.append(output)
        tokens, capture = packed(request.capture, prompt=prompt, output=output, logprobs=[-0.5] * len(output))
        return Completion(
            content=completion.content,
            tool_calls=completion.tool_calls,
            reasoning=completion.reasoning,
            finish=completion.finish,
            usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(output)),
            tokens=tokens,
            capture=capture,
        )


class Likelies(ExactPolicy):
    """Says that the id after the sampled one is the next likeliest."""

    gives_top_logprobs = True

    async def complete(self, request: Request) -> Completion:
        completion = await super().complete(request)
        places = [
            [TopToken(number + n, -0.5 - n) for n in range(request.top_logprobs)]
            for number in self.outputs[-1]
        ]
        tokens = with_top(completion.tokens, request.top_logprobs, places)
        return msgspec.structs.replace(completion, tokens=tokens)


def numbers(raw: bytes) -> list[int]:
    return array("i", raw).tolist()


def tokens(
    prompt_new: Sequence[int],
    output: Sequence[int],
    *,
    continues: int | None = None,
    prefix: int = 0,
    logprobs: Sequence[float] | None = None,
) -> Tokens:
    values = [-0.5] * len(output) if logprobs is None else logprobs
    return Tokens(
        prefix=prefix,
        prompt_new=struct.pack(f"<{len(prompt_new)}i", *prompt_new),
        output=struct.pack(f"<{len(output)}i", *output),
        logprobs=struct.pack(f"<{len(values)}f", *values),
        logprob_kind=None,
        continues=continues,
    )


def make_turn(kept: Tokens | None, **changes: Any) -> Turn:
    """A turn that holds these tokens."""
    fields: dict[str, Any] = {
        "role": "agent",
        "reads": (),
        "writes": None,
        "tokens": kept,
        "finish": "stop",
        "usage": None,
        "versions": (),
        "started_at": 0.0,
        "first_token_s": None,
        "seconds": 0.0,
        "retries": 0,
        "tool_calls": (),
        "tools_seconds": 0.0,
    }
    return Turn(**{**fields, **changes})
