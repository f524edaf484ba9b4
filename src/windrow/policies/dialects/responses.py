"""OpenAI's Responses: text, tool calls, and the logprobs of the text. Nothing is left at the server: every call sends the whole conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from windrow.policies.base import Completion, Request
from windrow.policies.capture import asks, packed
from windrow.policies.dialects.base import LOGPROBS, BadReply, Dialect, some_of
from windrow.policies.dialects.content_parts import parts, texts
from windrow.policies.top_logprobs import TopToken, with_top
from windrow.policies.wire import Count, Sampled, SampledWithTop, top_tokens_of
from windrow.records import Call, Json, Message, Usage

FINISHES = {"max_output_tokens": "length"}  # why a reply is incomplete


class _Part(msgspec.Struct, gc=False):
    type: str
    text: str | None = None
    refusal: str | None = None
    logprobs: list[Sampled] | None = None


class _Item(msgspec.Struct, gc=False):
    type: str
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: Count = 0
    output_tokens: Count = 0
    input_tokens_details: _Details | None = None


class _Reason(msgspec.Struct, gc=False):
    reason: str | None = None
    message: str | None = None


class _Response(msgspec.Struct, gc=False):
    status: str
    output: list[_Item]
    incomplete_details: _Reason | None = None
    error: _Reason | None = None
    usage: _Usage | None = None
    model: str | None = None


class _Texts(msgspec.Struct, gc=False):
    logprobs: list[SampledWithTop] | None = None


class _Texted(msgspec.Struct, gc=False):
    type: str
    content: list[_Texts] | None = None


class _AllTexts(msgspec.Struct, gc=False):
    output: list[_Texted]


_decode_texts = msgspec.json.Decoder(_AllTexts).decode
_decode = msgspec.json.Decoder(_Response).decode


class OpenAIResponses(Dialect):
    name = "responses"
    path = "/responses"
    accepts = some_of(*"temperature top_p max_tokens reasoning_effort".split())
    option_names: ClassVar[Mapping[str, str]] = {"max_tokens": "max_output_tokens"}
    writes = frozenset({"input", "store", "include", "top_logprobs"})
    answers = "a response"
    captures = LOGPROBS
    gives_top_logprobs = True

    def body(self, request: Request, model: str) -> dict[str, Json]:
        body: dict[str, Json] = {"model": model, "store": False}
        self.put_options(body, request)
        if "reasoning_effort" in body:
            body["reasoning"] = {"effort": body.pop("reasoning_effort")}
        if asks(request.capture, "logprobs"):
            body["include"] = ["message.output_text.logprobs"]
        if request.top_logprobs:
            body["top_logprobs"] = request.top_logprobs
        body["input"] = request.message_array(_items)
        if request.tools:
            body["tools"] = [{"type": "function", "strict": False, **tool} for tool in request.tools]
        return body

    def read(self, answer: bytes, request: Request) -> Completion:
        reply = _decode(answer)
        if reply.status not in ("completed", "incomplete"):
            reason = reply.error.message if reply.error else None
            raise BadReply(f"its status is {reply.status!r}: {reason or 'without a reason'}")
        parts = [part for item in reply.output if item.type == "message" for part in item.content or ()]
        reply_texts = [part.refusal if part.text is None else part.text for part in parts]
        thought = [part.text or "" for item in reply.output for part in item.summary or ()]
        calls = tuple(_call(item) for item in reply.output if item.type == "function_call")
        logprobs = [token.logprob for part in parts for token in part.logprobs or ()]
        tokens, reached = packed(
            request.capture, prompt=None, output=None, logprobs=logprobs or None, kind=self.logprob_kind
        )
        if request.top_logprobs and tokens is not None:
            tokens = with_top(tokens, request.top_logprobs, *_likeliest(answer))
        return Completion(
            content="".join(text or "" for text in reply_texts) if reply_texts else None,
            reasoning="\n".join(thought) or None,
            tool_calls=calls,
            finish=_finish(reply, calls),
            usage=_counted(reply.usage) if reply.usage else None,
            model=reply.model,
            tokens=tokens,
            capture=reached,
        )


def _likeliest(answer: bytes) -> tuple[list[list[TopToken]], list[str]]:
    """The likeliest tokens at each place of the text, and the sampled ones."""
    items = [item for item in _decode_texts(answer).output if item.type == "message"]
    return top_tokens_of(
        [token for item in items for part in item.content or () for token in part.logprobs or ()]
    )


def _items(message: Message) -> list[Json]:
    if message.role == "tool":
        whole = isinstance(message.content, list)
        result: Json = parts(message, _text, _image) if whole else message.content or ""
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": result}]
    if isinstance(message.content, list) and message.role != "assistant":
        content: Json = parts(message, _text, _image)
    else:
        content = "".join(texts(message))
    items: list[Json] = (
        [{"role": message.role, "content": content}] if content or not message.tool_calls else []
    )
    return items + [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls or ()
    ]


def _text(text: str) -> Json:
    return {"type": "input_text", "text": text}


def _image(url: str) -> Json:
    return {"type": "input_image", "image_url": url}


def _call(item: _Item) -> Call:
    if item.call_id is None or item.name is None or item.arguments is None:
        raise BadReply("a 'function_call' lacks 'call_id', 'name' or 'arguments'")
    return Call(id=item.call_id, name=item.name, arguments=item.arguments)


def _finish(reply: _Response, calls: tuple[Call, ...]) -> str | None:
    if reply.status == "incomplete":
        reason = reply.incomplete_details.reason if reply.incomplete_details else None
        return FINISHES.get(reason or "", reason)
    return "tool_calls" if calls else "stop"


def _counted(usage: _Usage) -> Usage:
    details = usage.input_tokens_details
    return Usage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
    )
