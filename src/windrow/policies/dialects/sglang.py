"""SGLang's /generate: ids in, ids out. The server's own /tokenize puts the messages through the chat template.

A logprob is a triple of itself, its id and its text; the ids have to be those of `output_ids`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec

from windrow.errors import InfraError
from windrow.policies.base import ForcedTokens, Request
from windrow.policies.capture import asks
from windrow.policies.dialects.base import BadReply, some_of
from windrow.policies.dialects.token_in_token_out import (
    MAX_TOKENS,
    Rendering,
    Sampled,
    Scored,
    TokenDialect,
    template_items,
)
from windrow.policies.prompt_ids import PromptReader, decoded, read_prompt_ids
from windrow.policies.top_logprobs import TopToken, TopTokens
from windrow.policies.wire import ABSENT, Count, Logprob, TokenId
from windrow.records import Json, Usage

if TYPE_CHECKING:
    from windrow.policies.endpoint import Endpoint


class _Finish(msgspec.Struct, gc=False):
    type: str
    message: str | None = None


class _Meta(msgspec.Struct, gc=False):
    prompt_tokens: Count
    completion_tokens: Count
    finish_reason: _Finish | None = None
    cached_tokens: Count = 0
    weight_version: str | None = None
    output_token_logprobs: list[tuple[Logprob, TokenId, str | None]] | None = None


class _TopMeta(msgspec.Struct, gc=False):
    output_top_logprobs: list[list[tuple[Logprob, TokenId, str | None]] | None] | None = None


class _Top(msgspec.Struct, gc=False):
    meta_info: _TopMeta


class _Generated(msgspec.Struct, gc=False):
    text: str
    output_ids: list[TokenId]
    meta_info: _Meta
    prompt_token_ids: msgspec.Raw = ABSENT


class _CheckedGenerated(_Generated, gc=False):
    """A reply that is decoded whole."""

    prompt_token_ids: list[TokenId] | None = None  # type: ignore[assignment]


class _Input(msgspec.Struct, gc=False):
    prompt_tokens: Count
    input_token_logprobs: list[tuple[Logprob | None, TokenId, str | None]]
    input_top_logprobs: list[list[tuple[Logprob, TokenId, str | None]] | None] | None = None
    cached_tokens: Count = 0


class _Scored(msgspec.Struct, gc=False):
    meta_info: _Input


_decode_scored = msgspec.json.Decoder(_Scored).decode
_decode_top = msgspec.json.Decoder(_Top).decode
_decode = msgspec.json.Decoder(_Generated).decode
_check = msgspec.json.Decoder(_CheckedGenerated).decode


class SglangGenerate(TokenDialect):
    name = "sglang-generate"
    path = "/generate"
    at_root = True
    default_max_tokens = MAX_TOKENS
    accepts = some_of(
        *"temperature top_p top_k min_p max_tokens stop".split(),
        *"presence_penalty frequency_penalty repetition_penalty".split(),
    )
    option_names: ClassVar[Mapping[str, str]] = {"max_tokens": "max_new_tokens"}

    async def render(self, request: Request, model: str, endpoint: Endpoint) -> Rendering:
        return await rendered_by_tokenize(self, request, model, endpoint)

    async def tokenize(self, text: str, model: str, endpoint: Endpoint, *, whole: bool) -> list[int]:
        return await tokenized(text, model, endpoint)

    async def detokenize(self, ids: Sequence[int], model: str, endpoint: Endpoint) -> str:
        asked: dict[str, Json] = {"model": model, "tokens": list(ids), "skip_special_tokens": False}
        reply = await endpoint.ask_tokenizer("/detokenize", asked)
        if reply.text is None:
            raise endpoint.bad_reply("/detokenize", "it has no 'text'")
        return reply.text

    def body_of(self, ids: list[int], request: Request, model: str) -> dict[str, Json]:
        options: dict[str, Json] = {"max_new_tokens": MAX_TOKENS}
        self.put_options(options, request)
        body: dict[str, Json] = {"input_ids": ids, "sampling_params": options, "stream": False}
        if asks(request.capture, "logprobs"):
            body |= {"return_logprob": True, "logprob_start_len": -1}
            body["top_logprobs_num"] = request.top_logprobs
        return body

    def sampled(self, answer: bytes, prompts: PromptReader) -> Sampled:
        reply = decoded(answer, _decode, _check)
        prompt_field = reply.prompt_token_ids
        prompt = read_prompt_ids([prompt_field], prompt_field, prompts, lambda: _check(answer))
        meta = reply.meta_info
        finish = meta.finish_reason
        if finish is not None and finish.type == "abort":
            raise InfraError(f"the server gave the call up: {finish.message or 'aborted'}", kind="aborted")
        if meta.completion_tokens != len(reply.output_ids):
            raise BadReply(
                f"'output_ids' has {len(reply.output_ids)} ids, 'completion_tokens' is {meta.completion_tokens}"
            )
        triples = meta.output_token_logprobs
        fits = triples is not None and [triple[1] for triple in triples] == reply.output_ids
        return Sampled(
            text=reply.text,
            ids=reply.output_ids,
            logprobs=[triple[0] for triple in triples] if fits and triples is not None else None,
            finish=finish.type if finish is not None else None,
            prompt_tokens=meta.prompt_tokens,
            cached_tokens=meta.cached_tokens,
            version=meta.weight_version,
            prompt=prompt,
        )

    def likeliest(self, answer: bytes, reply: Sampled) -> Sequence[TopTokens | None] | None:
        by_position = _decode_top(answer).meta_info.output_top_logprobs
        if by_position is None:
            return None
        return [[TopToken(triple[1], triple[0]) for triple in triples or ()] for triples in by_position]

    async def score_forced(self, forced: ForcedTokens, top: int, model: str, endpoint: Endpoint) -> Scored:
        # The first id that it tells of has no logprob, whichever it is: so the last one of the prompt is.
        start = max(len(forced.prompt) - 1, 0)
        ids = [*forced.prompt, *forced.output]
        body: dict[str, Json] = {"input_ids": ids, "stream": False}
        body["sampling_params"] = {"max_new_tokens": 1, "temperature": 0}
        body |= {"return_logprob": True, "logprob_start_len": start, "top_logprobs_num": top}
        answer = await endpoint.ask(self, body)
        return endpoint.read(self, answer, lambda reply: _scored(reply, ids[start:], len(forced.output)))


def _scored(answer: bytes, ids: list[int], count: int) -> Scored:
    """The logprobs of the last `count` of these ids."""
    meta = _decode_scored(answer).meta_info
    entries = meta.input_token_logprobs
    if [triple[1] for triple in entries] != ids:  # it tells an id beyond its vocabulary as another
        raise BadReply("'input_token_logprobs' are those of other ids than were sent")
    logprobs = [triple[0] for triple in entries[-count:] if triple[0] is not None]
    if len(logprobs) != count:
        raise BadReply(f"'input_token_logprobs' has {len(logprobs)} logprobs for {count} ids")
    by_position = (meta.input_top_logprobs or [])[-count:]
    return Scored(
        logprobs,
        [[TopToken(triple[1], triple[0]) for triple in triples or ()] for triples in by_position] or None,
        Usage(prompt_tokens=meta.prompt_tokens, completion_tokens=1, cached_tokens=meta.cached_tokens),
    )


async def rendered_by_tokenize(
    dialect: TokenDialect, request: Request, model: str, endpoint: Endpoint
) -> Rendering:
    """Messages to ids by the server's /tokenize, and their text, with which earlier calls are compared."""
    asked: dict[str, Json] = {"model": model, "messages": request.message_array(template_items)}
    asked["add_generation_prompt"] = True
    if request.tools:
        asked["tools"] = [{"type": "function", "function": tool} for tool in request.tools]
    reply = await endpoint.ask_tokenizer("/tokenize", asked)
    if reply.tokens is None:
        raise endpoint.bad_reply("/tokenize", "it has no 'tokens'")
    return Rendering(await dialect.detokenize(reply.tokens, model, endpoint), reply.tokens)


async def tokenized(text: str, model: str, endpoint: Endpoint) -> list[int]:
    """Text that goes on from ids: nothing is put before it."""
    reply = await endpoint.ask_tokenizer(
        "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False}
    )
    if reply.tokens is None:
        raise endpoint.bad_reply("/tokenize", "it has no 'tokens'")
    return reply.tokens
