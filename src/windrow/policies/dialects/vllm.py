"""vLLM's /v1/completions with ids: the prompt goes in as ids, and comes back as the server has seen it.

Its chat template is reached through /tokenize, which takes messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from windrow.errors import InfraError
from windrow.policies.base import ANY_SAMPLING, Request
from windrow.policies.capturing import asks
from windrow.policies.dialects.base import BadReply, with_options
from windrow.policies.dialects.sglang import rendered_by_tokenize, tokenized
from windrow.policies.dialects.tokenwise import MAX_TOKENS, Rendering, Sampled, TokenDialect
from windrow.policies.wire import Logprob, TokenId, WireUsage
from windrow.records import Json

if TYPE_CHECKING:
    from windrow.policies.endpoint import Endpoint


class _Logprobs(msgspec.Struct, gc=False):
    token_logprobs: list[Logprob | None]


class _Choice(msgspec.Struct, gc=False):
    text: str
    token_ids: list[TokenId]
    prompt_token_ids: list[TokenId] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Reply(msgspec.Struct, gc=False):
    choices: list[_Choice]
    usage: WireUsage
    model: str | None = None


_decode = msgspec.json.Decoder(_Reply).decode


class VllmCompletions(TokenDialect):
    name = "vllm-completions"
    path = "/completions"
    accepts = ANY_SAMPLING - {"reasoning_effort"}
    default_max_tokens = MAX_TOKENS

    async def render(self, request: Request, model: str, endpoint: Endpoint) -> Rendering:
        return await rendered_by_tokenize(self, request, model, endpoint)

    async def tokenize(self, text: str, model: str, endpoint: Endpoint, *, whole: bool) -> list[int]:
        return await tokenized(text, model, endpoint)

    async def detokenize(self, ids: Sequence[int], model: str, endpoint: Endpoint) -> str:
        told = await endpoint.tell("/detokenize", {"model": model, "tokens": list(ids)})
        if told.prompt is None:
            raise endpoint.bad_reply("/detokenize", "it has no 'prompt'")
        return told.prompt

    def body_of(self, ids: list[int], request: Request, model: str) -> dict[str, Json]:
        body: dict[str, Json] = {"model": model, "prompt": ids, "max_tokens": MAX_TOKENS}
        with_options(body, request)
        body["return_token_ids"] = True
        if asks(request.capture, "logprobs"):
            body["logprobs"] = 0
        return body

    def sampled(self, answer: bytes) -> Sampled:
        reply = _decode(answer)
        if not reply.choices:
            raise BadReply("it has no choices")
        choice, counted = reply.choices[0], reply.usage.counted
        if choice.finish_reason in ("abort", "error"):
            raise InfraError(f"the server gave the call up: {choice.finish_reason}", kind="aborted")
        if counted.completion_tokens != len(choice.token_ids):
            raise BadReply(
                f"'token_ids' has {len(choice.token_ids)} ids, 'completion_tokens' is {counted.completion_tokens}"
            )
        logprobs = choice.logprobs.token_logprobs if choice.logprobs else None
        return Sampled(
            text=choice.text,
            ids=choice.token_ids,
            logprobs=logprobs,
            finish=choice.finish_reason,
            prompt_tokens=counted.prompt_tokens,
            cached_tokens=counted.cached_tokens,
            model=reply.model,
            prompt=choice.prompt_token_ids or (),  # it is asked to tell
        )
