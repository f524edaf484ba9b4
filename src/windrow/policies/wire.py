"""The OpenAI wire format: typed structs for replies, plain values for requests.

Replies have thousands of structs (one per token), which hold no cycles: they stay out of the garbage collector.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from windrow.policies.top_logprobs import TopToken, by_id
from windrow.records import Call, Json, Message, Usage, part_text

Read = TypeVar("Read")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]  # as wide as a record keeps them
Logprob = Annotated[float, msgspec.Meta(ge=-1e38, le=1e38)]
ABSENT = msgspec.Raw(b"null")


class Function(msgspec.Struct, gc=False):
    name: str
    arguments: str | dict[str, Any] = ""


class WireCall(msgspec.Struct, gc=False):
    function: Function
    id: str | None = None


class WireMessage(msgspec.Struct, gc=False):
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[WireCall] | None = None

    @property
    def text(self) -> str | None:
        """The text of the reply: its content, joined where it comes in parts; else its refusal."""
        if isinstance(self.content, list):
            return "".join(map(part_text, self.content))
        return self.refusal if self.content is None else self.content

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(_call(call, position) for position, call in enumerate(self.tool_calls or ()))


class Sampled(msgspec.Struct, gc=False):
    """A sampled token; llama.cpp names its id beside the logprob."""

    logprob: Logprob
    id: TokenId | None = None


class Logprobs(msgspec.Struct, gc=False):
    content: list[Sampled] | None = None


class _TopToken(msgspec.Struct, gc=False):
    logprob: Logprob
    token: str = ""
    id: TokenId | None = None
    token_id: TokenId | None = None


class SampledWithTop(_TopToken, gc=False):
    """A sampled token, and the likeliest tokens at its position."""

    top_logprobs: list[_TopToken] | None = None


class _TopLogprobs(msgspec.Struct, gc=False):
    content: list[SampledWithTop] | None = None


class _TopChoice(msgspec.Struct, gc=False):
    logprobs: _TopLogprobs | None = None


class _TopReply(msgspec.Struct, gc=False):
    choices: list[_TopChoice]


class Choice(msgspec.Struct, gc=False):
    message: WireMessage
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    token_ids: list[TokenId] | None = None
    response_token_ids: list[TokenId] | None = None
    prompt_token_ids: msgspec.Raw = ABSENT

    @property
    def entries(self) -> list[Sampled] | None:
        """The sampled tokens that the server lists; None where it lists none."""
        return self.logprobs.content if self.logprobs else None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None


class WireUsage(msgspec.Struct, gc=False):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: _Details | None = None

    @property
    def counted(self) -> Usage:
        details = self.prompt_tokens_details
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
        )


class Reply(msgspec.Struct, gc=False):
    """A chat completion. The ids of prompts stay undecoded, for `prompt_ids.py` to read."""

    choices: list[Choice]
    usage: WireUsage | None = None
    model: str | None = None
    prompt_token_ids: msgspec.Raw = ABSENT


class CheckedChoice(Choice, gc=False):
    prompt_token_ids: list[TokenId] | None = None  # type: ignore[assignment]


class CheckedReply(Reply, gc=False):
    """A reply whose prompt ids are decoded too."""

    choices: list[CheckedChoice]  # type: ignore[assignment]
    prompt_token_ids: list[TokenId] | None = None  # type: ignore[assignment]


class TokenizerReply(msgspec.Struct, gc=False):
    """An answer of a server's tokenizer or chat template: each route fills some of the fields."""

    tokens: list[TokenId] | None = None  # of /tokenize
    content: str | None = None  # of llama.cpp's /detokenize
    text: str | None = None  # of SGLang's
    prompt: str | None = None  # of vLLM's, and of llama.cpp's /apply-template


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


encode = msgspec.json.Encoder().encode
_decode_reply = msgspec.json.Decoder(Reply).decode
_decode_checked = msgspec.json.Decoder(CheckedReply).decode
_decode_top = msgspec.json.Decoder(_TopReply).decode
decode_tokenizer_reply = msgspec.json.Decoder(TokenizerReply).decode
_decode_models = msgspec.json.Decoder(_Models).decode

# The errors that decoding raises for bytes that are not a reply.
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


def decode_reply(body: bytes) -> Reply:
    try:
        return _decode_reply(body)
    except UNDECODABLE:
        return _with_raw_ids(check_reply(body))


def check_reply(body: bytes) -> CheckedReply:
    """The reply with all ids decoded; raises the decoding error of the first thing that is wrong."""
    return _decoded(body, _decode_checked, CheckedReply)


def _with_raw_ids(reply: CheckedReply) -> Reply:
    """A reply whose prompt ids were decoded, with these ids as raw JSON again."""
    reply.prompt_token_ids = msgspec.Raw(encode(reply.prompt_token_ids))  # type: ignore[assignment]
    for choice in reply.choices:
        choice.prompt_token_ids = msgspec.Raw(encode(choice.prompt_token_ids))  # type: ignore[assignment]
    return reply


def _decoded(body: bytes, decode: Callable[[bytes], Read], kind: type[Read]) -> Read:
    try:
        return decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # A reply cut in the middle of an emoji carries half a surrogate pair, which is not Unicode: the json module
        # takes it, and the recorder replaces it.
        if b"\\ud" not in body.lower():
            raise
        return msgspec.convert(json.loads(body), kind)


def likeliest(body: bytes) -> tuple[list[list[TopToken]], list[str]] | None:
    """The likeliest tokens at each position of a reply, and the sampled tokens' texts; None where it lists none.

    They are decoded separately, so that a reply that was not asked for them is not held to their form.
    """
    logprobs = _decoded(body, _decode_top, _TopReply).choices[0].logprobs
    content = logprobs.content if logprobs is not None else None
    return None if content is None else top_tokens_of(content)


def top_tokens_of(content: list[SampledWithTop]) -> tuple[list[list[TopToken]], list[str]]:
    top_tokens = [
        [TopToken(_token_name(token), token.logprob) for token in entry.top_logprobs or ()]
        for entry in content
    ]
    return top_tokens, [entry.token for entry in content]


def _token_name(token: _TopToken) -> int | str:
    """The id, wherever the server puts it, else the text."""
    number = token.id if token.id is not None else token.token_id
    return by_id(token.token) if number is None else number


def decode_object(text: str) -> dict[str, Json] | None:
    """The JSON object in `text`; None where it is not one."""
    try:
        value = msgspec.json.decode(text)
    except UNDECODABLE:
        return None
    return value if isinstance(value, dict) else None


def decode_models(body: bytes) -> list[str]:
    """The names of the models that /models lists."""
    return [model.id for model in _decode_models(body).data]


def wire_message(message: Message) -> dict[str, Json]:
    """A message as the endpoint takes it, without the fields that only the record has."""
    wire: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        wire["name"] = message.name
    return wire


def _call(call: WireCall, position: int) -> Call:
    arguments = call.function.arguments
    text = arguments if isinstance(arguments, str) else encode(arguments).decode()
    return Call(id=call.id or f"call_{position}", name=call.function.name, arguments=text)
