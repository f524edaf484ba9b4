"""llama.cpp: its chat, which names each sampled id beside its logprob, and /completion, which takes ids.

Logprobs are those of the model before temperature and truncation. There may be fewer of them than tokens: none is sent
while the text ends inside a character. A reply is exact only where each id has its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

import msgspec

from windrow.errors import ContextOverflow
from windrow.policies.base import Completion, ForcedTokens, Request
from windrow.policies.capture import asks, packed
from windrow.policies.dialects.base import TOKENS, BadReply, some_of
from windrow.policies.dialects.chat import OpenAIChat, chat_items
from windrow.policies.dialects.forced_tokens import score_forced_ids
from windrow.policies.dialects.token_in_token_out import (
    Rendering,
    Sampled,
    Scored,
    TokenDialect,
    template_items,
)
from windrow.policies.prompt_ids import PromptReader
from windrow.policies.top_logprobs import TopToken, TopTokens
from windrow.policies.wire import Count, Logprob, TokenId
from windrow.records import Json

if TYPE_CHECKING:
    from windrow.policies.endpoint import Endpoint

Value = TypeVar("Value")

LOOK_S = 20.0  # for the server to say how long its context is
FEW, ALL = 256, 1 << 20  # of the likeliest tokens that a missing logprob is looked for among


class LlamacppChat(OpenAIChat):
    name = "llamacpp"
    captures = TOKENS
    logprob_kind = "raw"
    # It sends no logprobs for 0; each comes with its token's id.
    logprob_options: ClassVar[dict[str, Json]] = {"logprobs": True, "top_logprobs": 1}
    writes = OpenAIChat.writes | {"n_predict", "n_probs"}  # its own words for them count here too

    async def complete(self, request: Request, model: str, endpoint: Endpoint) -> Completion:
        prompt = await self._prompt(request, endpoint) if asks(request.capture, "tokens") else None
        answer = await endpoint.ask(self, self.body(request, model))
        return endpoint.read(self, answer, lambda body: self._exact(body, request, prompt))

    async def _prompt(self, request: Request, endpoint: Endpoint) -> list[int]:
        """The ids that the server makes of the messages. A prompt that does not fit is not sent."""
        body: dict[str, Json] = {"messages": request.message_array(chat_items)}
        if request.tools:
            body["tools"] = [{"type": "function", "function": tool} for tool in request.tools]
        ids = await tokenized(await applied(body, endpoint), endpoint, whole=True)
        check_fits(ids, endpoint)
        return ids

    def _exact(self, answer: bytes, request: Request, prompt: Sequence[int] | None) -> Completion:
        reply, _ = self.decoded(answer, request)
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
            kind=self.logprob_kind,
        )
        return self.completed(reply, self.with_top(tokens, answer, request), reached)


class _Probability(msgspec.Struct, gc=False):
    id: TokenId
    logprob: Logprob


class _Timings(msgspec.Struct, gc=False):
    cache_n: Count = 0


class _Completed(msgspec.Struct, gc=False):
    content: str
    tokens: list[TokenId]
    tokens_predicted: Count
    tokens_evaluated: Count
    stop_type: str | None = None
    truncated: bool = False
    completion_probabilities: list[_Probability] | None = None
    timings: _Timings | None = None
    model: str | None = None


class _Scored(_Probability, gc=False):
    top_logprobs: list[_Probability]


class _AllScored(msgspec.Struct, gc=False):
    completion_probabilities: list[_Scored]


_decode_scored = msgspec.json.Decoder(_AllScored).decode
_decode = msgspec.json.Decoder(_Completed).decode
_FINISHES = {"eos": "stop", "word": "stop", "limit": "length"}


class LlamacppCompletion(TokenDialect):
    name = "llamacpp-completion"
    path = "/completion"
    at_root = True
    accepts = some_of(
        *"temperature top_p top_k min_p max_tokens stop seed".split(),
        *"presence_penalty frequency_penalty repetition_penalty".split(),
    )
    option_names: ClassVar[Mapping[str, str]] = {
        "max_tokens": "n_predict",
        "repetition_penalty": "repeat_penalty",
    }
    writes = frozenset({"prompt", "return_tokens", "n_probs"})
    logprob_kind = "raw"

    async def render(self, request: Request, model: str, endpoint: Endpoint) -> Rendering:
        return Rendering(await applied({"messages": request.message_array(template_items)}, endpoint), None)

    async def tokenize(self, text: str, model: str, endpoint: Endpoint, *, whole: bool) -> list[int]:
        return await tokenized(text, endpoint, whole=whole)

    async def detokenize(self, ids: Sequence[int], model: str, endpoint: Endpoint) -> str:
        reply = await endpoint.ask_tokenizer("/detokenize", {"tokens": list(ids)})
        if reply.content is None:
            raise endpoint.bad_reply("/detokenize", "it has no 'content'")
        return reply.content

    async def context_tokens(self, endpoint: Endpoint) -> int:
        settings = (await endpoint.get_object("/props", LOOK_S)).get("default_generation_settings")
        size = settings.get("n_ctx") if isinstance(settings, dict) else None
        return size if isinstance(size, int) else 0

    def check_length(self, ids: list[int], endpoint: Endpoint) -> None:
        check_fits(ids, endpoint)

    def body_of(self, ids: list[int], request: Request, model: str) -> dict[str, Json]:
        body: dict[str, Json] = {"prompt": ids, "return_tokens": True, "stream": False}
        self.put_options(body, request)
        if asks(request.capture, "logprobs"):
            body["n_probs"] = max(1, request.top_logprobs)
        return body

    def sampled(self, answer: bytes, prompts: PromptReader) -> Sampled:
        reply = _decode(answer)
        if reply.tokens_predicted != len(reply.tokens):
            raise BadReply(
                f"'tokens' has {len(reply.tokens)} ids, 'tokens_predicted' is {reply.tokens_predicted}"
            )
        entries = reply.completion_probabilities
        return Sampled(
            text=reply.content,
            ids=reply.tokens,
            logprobs=None
            if entries is None
            else aligned(reply.tokens, [(entry.id, entry.logprob) for entry in entries]),
            finish=_FINISHES.get(reply.stop_type or ""),
            prompt_tokens=reply.tokens_evaluated,
            overflowed=reply.truncated,
            cached_tokens=reply.timings.cache_n if reply.timings else 0,
            model=reply.model,
        )

    def likeliest(self, answer: bytes, reply: Sampled) -> Sequence[TopTokens | None] | None:
        entries = _decode_scored(answer).completion_probabilities
        return aligned(reply.ids, [(entry.id, top_tokens_of(entry.top_logprobs)) for entry in entries])

    async def fill(self, ids: list[int], reply: Sampled, endpoint: Endpoint) -> Sampled:
        """What was left out is asked for by the prefix that it follows."""
        logprobs, top = list(reply.logprobs or ()), list(reply.top or ())
        for position, logprob in enumerate(logprobs):
            if logprob is None:
                prefix = [*ids, *reply.ids[:position]]
                logprobs[position], likely = await self.score(prefix, reply.ids[position], endpoint)
                if top:
                    top[position] = likely
        return reply._replace(logprobs=logprobs, top=top or None)

    async def score_forced(self, forced: ForcedTokens, top: int, model: str, endpoint: Endpoint) -> Scored:
        return await score_forced_ids(self, forced, top, endpoint)

    async def score(
        self, prefix: list[int], token: int, endpoint: Endpoint
    ) -> tuple[float | None, TopTokens]:
        """The logprob of a token after a prefix, None where the server does not tell, and the likeliest there."""
        for n_probs in (FEW, ALL):
            # A letter is made to be sampled, as a part of a character would leave its logprobs out again; those of the
            # model are told before any bias.
            body: dict[str, Json] = {"prompt": prefix, "n_predict": 1, "n_probs": n_probs, "stream": False}
            body["logit_bias"] = [["a", 1000.0]]
            answer = await endpoint.ask(self, body)
            scored = endpoint.read(self, answer, _decode_scored).completion_probabilities
            likely = top_tokens_of(scored[0].top_logprobs) if scored else []
            for candidate in likely:
                if candidate.name == token:
                    return candidate.logprob, likely
        return None, likely


class LlamacppEmbedded(LlamacppChat):
    """The server in this process: ids are sent where they are to be kept, and a chat where it reads tool calls."""

    writes = LlamacppChat.writes | LlamacppCompletion.writes
    _exactly = LlamacppCompletion()

    async def complete(self, request: Request, model: str, endpoint: Endpoint) -> Completion:
        if asks(request.capture, "tokens") and not request.tools:
            return await self._exactly.complete(request, model, endpoint)
        return await super().complete(request, model, endpoint)


def top_tokens_of(likely: Sequence[_Probability]) -> list[TopToken]:
    return [TopToken(entry.id, entry.logprob) for entry in likely]


def aligned(ids: Sequence[int], entries: Sequence[tuple[int, Value]]) -> list[Value | None] | None:
    """What was told of ids, by their places in the reply; None at the places for which the server told nothing.

    What is left out can be told by the ids alone, except where the same id stands on both sides of a gap: a place
    counts only if looking from the left and from the right finds the same one for it. None where the ids do not
    follow each other as in the reply.
    """
    left = _positions(ids, [number for number, _ in entries])
    right = _positions(ids[::-1], [number for number, _ in reversed(entries)])
    if left is None or right is None:
        return None
    mirrored = [len(ids) - 1 - position for position in reversed(right)]
    by_position: list[Value | None] = [None] * len(ids)
    for (_, value), first, last in zip(entries, left, mirrored, strict=True):
        if first == last:
            by_position[first] = value
    return by_position


def _positions(ids: Sequence[int], entry_ids: Sequence[int]) -> list[int] | None:
    """The first places at which `entry_ids` stands in `ids`, in order."""
    positions: list[int] = []
    position = 0
    for entry_id in entry_ids:
        while position < len(ids) and ids[position] != entry_id:
            position += 1
        if position == len(ids):
            return None
        positions.append(position)
        position += 1
    return positions


async def applied(body: dict[str, Json], endpoint: Endpoint) -> str:
    """The text that the server's chat template makes of a chat's body."""
    reply = await endpoint.ask_tokenizer("/apply-template", body)
    if reply.prompt is None:
        raise endpoint.bad_reply("/apply-template", "it has no 'prompt'")
    return reply.prompt


async def tokenized(text: str, endpoint: Endpoint, *, whole: bool) -> list[int]:
    asked: dict[str, Json] = {"content": text, "add_special": whole, "parse_special": True}
    reply = await endpoint.ask_tokenizer("/tokenize", asked)
    if reply.tokens is None:
        raise endpoint.bad_reply("/tokenize", "it has no 'tokens'")
    return reply.tokens


def check_fits(ids: Sequence[int], endpoint: Endpoint) -> None:
    if endpoint.context_tokens is not None and len(ids) >= endpoint.context_tokens:
        raise ContextOverflow(
            f"the prompt has {len(ids)} tokens, the context {endpoint.context_tokens} "
            f"(policy.local.context_tokens)"
        )
