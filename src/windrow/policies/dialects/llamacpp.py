"""llama.cpp: its chat, which names each sampled id beside its logprob, and /completion, which takes ids.

Logprobs are those of the model before temperature and truncation. There may be fewer of them than tokens: none is sent
while the text ends inside a character. A reply is exact only where each id has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from windrow.errors import ContextOverflow
from windrow.policies.base import Completion, Request
from windrow.policies.capturing import asks, packed
from windrow.policies.dialects.base import TOKENS, BadReply
from windrow.policies.dialects.chat import OpenAIChat
from windrow.policies.wire import decode_reply, wire_message
from windrow.records import Json

if TYPE_CHECKING:
    from windrow.policies.endpoint import Endpoint


class LlamacppChat(OpenAIChat):
    name = "llamacpp"
    captures = TOKENS
    # It sends no logprobs for 0; each comes with its token's id.
    logprob_options: ClassVar[dict[str, Json]] = {"logprobs": True, "top_logprobs": 1}

    async def complete(self, request: Request, model: str, endpoint: Endpoint) -> Completion:
        prompt = await self._prompt(request, endpoint) if asks(request.capture, "tokens") else None
        answer = await endpoint.ask(self, self.body(request, model))
        return endpoint.read(self, answer, lambda body: self._exact(body, request, prompt))

    async def _prompt(self, request: Request, endpoint: Endpoint) -> list[int]:
        """The ids that the server makes of the messages. A prompt that does not fit is not sent."""
        body: dict[str, Json] = {"messages": [wire_message(message) for message in request.messages]}
        if request.tools:
            body["tools"] = [{"type": "function", "function": tool} for tool in request.tools]
        ids = await tokenized(await applied(body, endpoint), endpoint, whole=True)
        check_fits(ids, endpoint)
        return ids

    def _exact(self, answer: bytes, request: Request, prompt: Sequence[int] | None) -> Completion:
        reply = decode_reply(answer)
        if not reply.choices:
            raise BadReply("it has no choices")
        entries = reply.choices[0].entries
        ids = [entry.id for entry in entries or () if entry.id is not None]
        usage = reply.usage
        counted = (usage.prompt_tokens, usage.completion_tokens) if usage is not None else None
        whole = counted == (len(prompt or ()), len(ids))
        tokens, reached = packed(
            request.capture,
            prompt=prompt if whole else None,
            output=ids if whole else None,
            logprobs=None if entries is None else [entry.logprob for entry in entries],
            kind="raw",
        )
        return self.completed(reply, tokens, reached)


async def applied(body: dict[str, Json], endpoint: Endpoint) -> str:
    """The text that the server's chat template makes of a chat's body."""
    told = await endpoint.tell("/apply-template", body)
    if told.prompt is None:
        raise endpoint.bad_reply("/apply-template", "it has no 'prompt'")
    return told.prompt


async def tokenized(text: str, endpoint: Endpoint, *, whole: bool) -> list[int]:
    asked: dict[str, Json] = {"content": text, "add_special": whole, "parse_special": True}
    told = await endpoint.tell("/tokenize", asked)
    if told.tokens is None:
        raise endpoint.bad_reply("/tokenize", "it has no 'tokens'")
    return told.tokens


def check_fits(ids: Sequence[int], endpoint: Endpoint) -> None:
    if endpoint.context_tokens is not None and len(ids) >= endpoint.context_tokens:
        raise ContextOverflow(
            f"the prompt has {len(ids)} tokens, the context {endpoint.context_tokens} "
            f"(policy.local.context_tokens)"
        )
