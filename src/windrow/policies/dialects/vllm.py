"""vLLM's routes that take ids: /v1/completions, which also tells what prompt it has seen, and /inference/v1/generate.

The chat template is reached through /tokenize, which takes messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from windrow.errors import InfraError
from windrow.policies.base import ANY_SAMPLING, ForcedTokens, Request
from windrow.policies.capture import asks
from windrow.policies.dialects.base import BadReply, some_of
from windrow.policies.dialects.sglang import rendered_by_tokenize, tokenized
from windrow.policies.dialects.token_in_token_out import MAX_TOKENS, Rendering, Sampled, Scored, TokenDialect
from windrow.policies.prompt_ids import PromptReader, decoded, read_prompt_ids
from windrow.policies.top_logprobs import MISSING_LOGPROB, TopToken, TopTokens, by_id
from windrow.policies.wire import ABSENT, Logprob, TokenId, WireUsage, likeliest
from windrow.records import Json

if TYPE_CHECKING:
    from windrow.policies.endpoint import Endpoint

GIVEN_UP = ("abort", "error")


class _Logprobs(msgspec.Struct, gc=False):
    token_logprobs: list[Logprob | None]


class _Choice(msgspec.Struct, gc=False):
    text: str
    token_ids: list[TokenId]
    prompt_token_ids: msgspec.Raw = ABSENT
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Reply(msgspec.Struct, gc=False):
    choices: list[_Choice]
    usage: WireUsage
    model: str | None = None


class _CheckedChoice(_Choice, gc=False):
    prompt_token_ids: list[TokenId] | None = None  # type: ignore[assignment]


class _CheckedReply(_Reply, gc=False):
    """A reply that is decoded whole."""

    choices: list[_CheckedChoice]  # type: ignore[assignment]


class _Prompted(msgspec.Struct, gc=False):
    logprob: Logprob


class _ScoredChoice(msgspec.Struct, gc=False):
    prompt_logprobs: list[dict[TokenId, _Prompted] | None]


class _ScoredReply(msgspec.Struct, gc=False):
    choices: list[_ScoredChoice]
    usage: WireUsage


_decode_scored = msgspec.json.Decoder(_ScoredReply).decode


class _TopLogprobs(msgspec.Struct, gc=False):
    top_logprobs: list[dict[str, Logprob] | None] | None = None


class _TopChoice(msgspec.Struct, gc=False):
    logprobs: _TopLogprobs | None = None


class _TopReply(msgspec.Struct, gc=False):
    choices: list[_TopChoice]


_decode_top = msgspec.json.Decoder(_TopReply).decode
_decode = msgspec.json.Decoder(_Reply).decode
_check = msgspec.json.Decoder(_CheckedReply).decode


class _Vllm(TokenDialect):
    """How vLLM renders, splits and joins."""

    default_max_tokens = MAX_TOKENS

    async def render(self, request: Request, model: str, endpoint: Endpoint) -> Rendering:
        return await rendered_by_tokenize(self, request, model, endpoint)

    async def tokenize(self, text: str, model: str, endpoint: Endpoint, *, whole: bool) -> list[int]:
        return await tokenized(text, model, endpoint)

    async def detokenize(self, ids: Sequence[int], model: str, endpoint: Endpoint) -> str:
        reply = await endpoint.ask_tokenizer("/detokenize", {"model": model, "tokens": list(ids)})
        if reply.prompt is None:
            raise endpoint.bad_reply("/detokenize", "it has no 'prompt'")
        return reply.prompt


class VllmCompletions(_Vllm):
    name = "vllm-completions"
    path = "/completions"
    accepts = ANY_SAMPLING - {"reasoning_effort"}
    writes = frozenset(
        {"prompt", "logprobs", "return_token_ids", "return_tokens_as_token_ids", "prompt_logprobs"}
    )

    async def score_forced(self, forced: ForcedTokens, top: int, model: str, endpoint: Endpoint) -> Scored:
        """The logprobs of a prompt, of which the output is the end; one token is sampled and left."""
        ids = [*forced.prompt, *forced.output]
        body: dict[str, Json] = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0}
        body["prompt_logprobs"] = top
        answer = await endpoint.ask(self, body)
        return endpoint.read(self, answer, lambda reply: _scored(reply, ids, len(forced.output)))

    def body_of(self, ids: list[int], request: Request, model: str) -> dict[str, Json]:
        body: dict[str, Json] = {"model": model, "prompt": ids, "max_tokens": MAX_TOKENS}
        self.put_options(body, request)
        body["return_token_ids"] = True
        if asks(request.capture, "logprobs"):
            body["logprobs"] = request.top_logprobs  # beside the sampled token's own
        if request.top_logprobs:
            body["return_tokens_as_token_ids"] = True
        return body

    def likeliest(self, answer: bytes, reply: Sampled) -> Sequence[TopTokens | None] | None:
        logprobs = _decode_top(answer).choices[0].logprobs
        if logprobs is None or logprobs.top_logprobs is None:
            return None
        by_position = logprobs.top_logprobs
        return [
            [TopToken(by_id(token), value) for token, value in (candidates or {}).items()]
            for candidates in by_position
        ]

    def sampled(self, answer: bytes, prompts: PromptReader) -> Sampled:
        reply = decoded(answer, _decode, _check)
        fields = [choice.prompt_token_ids for choice in reply.choices]
        prompt = read_prompt_ids(fields, fields[0] if fields else None, prompts, lambda: _check(answer))
        if not reply.choices:
            raise BadReply("it has no choices")
        choice, counted = reply.choices[0], reply.usage.counted
        if choice.finish_reason in GIVEN_UP:
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
            prompt=prompt or b"",  # it is asked to tell
        )


def _scored(answer: bytes, ids: list[int], count: int) -> Scored:
    """The logprobs of the last `count` of these ids."""
    reply = _decode_scored(answer)
    if not reply.choices:
        raise BadReply("it has no choices")
    by_position = reply.choices[0].prompt_logprobs
    if len(by_position) != len(ids):
        raise BadReply(f"'prompt_logprobs' tells of {len(by_position)} ids, and {len(ids)} were sent")
    logprobs, top = [], []
    for number, candidates in zip(ids[-count:], by_position[-count:], strict=True):
        scored = (candidates or {}).get(number)
        if candidates is None or scored is None or scored.logprob <= MISSING_LOGPROB:
            raise BadReply(f"'prompt_logprobs' has no logprob of the id {number}")
        logprobs.append(scored.logprob)
        top.append([TopToken(name, entry.logprob) for name, entry in candidates.items()])
    return Scored(logprobs, top, reply.usage.counted)


class _Sampled(msgspec.Struct, gc=False):
    logprob: Logprob


class _Content(msgspec.Struct, gc=False):
    content: list[_Sampled] | None = None


class _Generation(msgspec.Struct, gc=False):
    token_ids: list[TokenId]
    finish_reason: str | None
    logprobs: _Content | None = None


class _Generated(msgspec.Struct, gc=False):
    choices: list[_Generation]


_decode_generated = msgspec.json.Decoder(_Generated).decode


class VllmGenerate(_Vllm):
    """Ids alone: the text of a reply is asked for. Without stop words, what ends a reply is always a token."""

    name = "vllm-generate"
    path = "/inference/v1/generate"
    at_root = True
    accepts = some_of(
        *"temperature top_p top_k min_p max_tokens seed".split(),
        *"presence_penalty frequency_penalty repetition_penalty".split(),
    )
    writes = frozenset({"logprobs"})

    def body_of(self, ids: list[int], request: Request, model: str) -> dict[str, Json]:
        options: dict[str, Json] = {"max_tokens": MAX_TOKENS}
        self.put_options(options, request)
        if asks(request.capture, "logprobs"):
            # It counts the sampled token among the likeliest: one more, and they are always all there.
            options["logprobs"] = request.top_logprobs + 1 if request.top_logprobs else 0
        return {"model": model, "token_ids": ids, "sampling_params": options, "stream": False}

    def likeliest(self, answer: bytes, reply: Sampled) -> Sequence[TopTokens | None] | None:
        top = likeliest(answer)
        return None if top is None else top[0]

    def sampled(self, answer: bytes, prompts: PromptReader) -> Sampled:
        reply = _decode_generated(answer)
        if not reply.choices:
            raise BadReply("it has no choices")
        choice = reply.choices[0]
        if choice.finish_reason in GIVEN_UP:
            raise InfraError(f"the server gave the call up: {choice.finish_reason}", kind="aborted")
        if not choice.token_ids:
            raise BadReply("'token_ids' is empty")
        entries = choice.logprobs.content if choice.logprobs else None
        logprobs = None if entries is None else [entry.logprob for entry in entries]
        if logprobs is not None and len(logprobs) != len(choice.token_ids):
            raise BadReply(f"'token_ids' has {len(choice.token_ids)} ids, 'logprobs' {len(logprobs)}")
        return Sampled(
            text=None,
            ids=choice.token_ids,
            logprobs=None if logprobs and min(logprobs) <= MISSING_LOGPROB else logprobs,
            finish=choice.finish_reason,
            prompt_tokens=None,
        )
