"""OpenAI's chat completions, and the servers that say more of the tokens in the same shape.

| dialect  | ids of the prompt           | ids of the reply                                  |
|----------|-----------------------------|---------------------------------------------------|
| `openai` | –                           | –                                                 |
| `vllm`   | `prompt_token_ids`          | `choices[].token_ids`                             |
| `sglang` | `choices[].prompt_token_ids`| `choices[].response_token_ids`, earlier `token_ids` |

All of them send logprobs as `choices[].logprobs.content[].logprob`; vLLM only where `top_logprobs` is sent too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from windrow.policies.base import Completion, Request
from windrow.policies.capture import asks, packed
from windrow.policies.dialects.base import LOGPROBS, TOKENS, BadReply, Dialect
from windrow.policies.prompt_ids import read_prompt_ids
from windrow.policies.top_logprobs import MISSING_LOGPROB, with_top
from windrow.policies.wire import (
    Choice,
    Reply,
    check_reply,
    decode_reply,
    likeliest,
    wire_message,
)
from windrow.records import Capture, Json, Message, Tokens
from windrow.util.token_contexts import ID_BYTES


class OpenAIChat(Dialect):
    name = "openai"
    path = "/chat/completions"
    captures = LOGPROBS
    gives_top_logprobs = True
    logprob_options: ClassVar[dict[str, Json]] = {"logprobs": True, "top_logprobs": 0}
    token_options: ClassVar[dict[str, Json]] = {}
    # Of all servers in this shape: which of them it is may only be known later.
    writes = frozenset(
        {
            "logprobs",
            "top_logprobs",
            "return_token_ids",
            "return_prompt_token_ids",
            "return_tokens_as_token_ids",
        }
    )

    def body(self, request: Request, model: str) -> dict[str, Json]:
        request = with_images_after_results(request)
        body: dict[str, Json] = {"model": model, "messages": request.message_array(chat_items)}
        self.put_options(body, request)
        if asks(request.capture, "logprobs"):
            body |= self.logprob_options
            if request.top_logprobs:
                body |= self.top_options(request.top_logprobs)
        if asks(request.capture, "tokens"):
            body |= self.token_options
        if request.tools:
            body["tools"] = [{"type": "function", "function": tool} for tool in request.tools]
        return body

    def top_options(self, k: int) -> dict[str, Json]:
        """The options that ask for the `k` likeliest tokens at each position."""
        return {"top_logprobs": k}

    def read(self, answer: bytes, request: Request) -> Completion:
        reply, prompt = self.decoded(answer, request)
        tokens, reached = self.tokens(reply, prompt, request.capture)
        return self.completed(reply, self.with_top(tokens, answer, request), reached)

    def decoded(self, answer: bytes, request: Request) -> tuple[Reply, bytes | None]:
        """The reply, and its prompt's ids where the server sends them and its count of them agrees."""
        reply = decode_reply(answer)
        prompt_field = self.prompt_field(reply)
        fields = [reply.prompt_token_ids, *[choice.prompt_token_ids for choice in reply.choices]]
        prompt = read_prompt_ids(fields, prompt_field, request.prompts, lambda: check_reply(answer))
        if not reply.choices:
            raise BadReply("it has no choices")
        return reply, prompt if counts_agree(reply, prompt) else None

    def prompt_field(self, reply: Reply) -> msgspec.Raw | None:
        """The field of a reply that has the ids of its prompt."""
        return None

    def with_top(self, tokens: Tokens | None, answer: bytes, request: Request) -> Tokens | None:
        """The tokens with the likeliest at each position, where the request asked for them and the reply has them."""
        top = likeliest(answer) if request.top_logprobs and tokens is not None else None
        return tokens if top is None else with_top(tokens, request.top_logprobs, *top)

    def completed(self, reply: Reply, tokens: Tokens | None, reached: Capture) -> Completion:
        choice = reply.choices[0]
        message = choice.message
        return Completion(
            content=message.text,
            tokens=tokens,
            capture=reached,
            tool_calls=message.calls if message.tool_calls else (),
            reasoning=message.reasoning_content or message.reasoning,
            finish=choice.finish_reason,
            usage=reply.usage.counted if reply.usage is not None else None,
            model=reply.model,
        )

    def tokens(self, reply: Reply, prompt: bytes | None, capture: Capture) -> tuple[Tokens | None, Capture]:
        """The tokens in the reply, and the level that they reach."""
        choice = reply.choices[0]
        output, logprobs = self.output(choice), logprobs_of(choice)
        return packed(capture, prompt=prompt, output=output, logprobs=logprobs, kind=self.logprob_kind)

    def output(self, choice: Choice) -> list[int] | None:
        """The ids of the reply."""
        return None


class VllmChat(OpenAIChat):
    name = "vllm"
    captures = TOKENS
    token_options: ClassVar[dict[str, Json]] = {"return_token_ids": True}

    def top_options(self, k: int) -> dict[str, Json]:
        # It counts the sampled token among them, likely or not: one more, and the k likeliest are always there.
        return {"top_logprobs": k + 1, "return_tokens_as_token_ids": True}

    def prompt_field(self, reply: Reply) -> msgspec.Raw | None:
        return reply.prompt_token_ids

    def output(self, choice: Choice) -> list[int] | None:
        return choice.token_ids


class SglangChat(OpenAIChat):
    name = "sglang"
    captures = TOKENS
    token_options: ClassVar[dict[str, Json]] = {"return_token_ids": True, "return_prompt_token_ids": True}

    def prompt_field(self, reply: Reply) -> msgspec.Raw | None:
        return reply.choices[0].prompt_token_ids if reply.choices else None

    def output(self, choice: Choice) -> list[int] | None:
        return choice.token_ids if choice.response_token_ids is None else choice.response_token_ids


def with_images_after_results(request: Request) -> Request:
    """The request with the images of tool results in a user message after them: a tool message holds text alone here, and
    nothing may stand between the results of one reply.
    """
    if not any(message.role == "tool" and isinstance(message.content, list) for message in request.messages):
        return request
    messages: list[Message] = []
    waiting: list[dict[str, Json]] = []
    for message in (*request.messages, None):
        if waiting and (message is None or message.role != "tool"):
            messages.append(Message(role="user", content=waiting, origin="tool"))
            waiting = []
        if message is not None and message.role == "tool" and isinstance(message.content, list):
            images = [part for part in message.content if part.get("type") == "image_url"]
            waiting = [*waiting, *images]
            words = message.text or "[an image, shown below]"
            message = msgspec.structs.replace(message, content=words)
        if message is not None:
            messages.append(message)
    return msgspec.structs.replace(request, messages=tuple(messages))


def chat_items(message: Message) -> list[Json]:
    return [wire_message(message)]


def counts_agree(reply: Reply, prompt: bytes | None) -> bool:
    """Whether the prompt has as many ids as the server counted, if it counted them."""
    return reply.usage is None or prompt is None or reply.usage.prompt_tokens * ID_BYTES == len(prompt)


def logprobs_of(choice: Choice) -> Sequence[float] | None:
    """One logprob per sampled token that the server lists; None where one of them is only a placeholder."""
    entries = choice.entries
    if entries is None:
        return None
    logprobs = [entry.logprob for entry in entries]
    return None if logprobs and min(logprobs) <= MISSING_LOGPROB else logprobs
