"""Anthropic's Messages: text and tool calls. It tells nothing of tokens.

The system message stands beside the others, tool results are parts of the user's next message, and a request always
says how long the reply may be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from windrow.policies.base import Completion, Request
from windrow.policies.capture import lower
from windrow.policies.dialects.base import BadReply, Dialect, some_of
from windrow.policies.dialects.content_parts import arguments_of, parts, texts
from windrow.policies.message_encoding import json_array
from windrow.policies.wire import Count, encode
from windrow.records import Call, Json, Message, Usage

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.S)
VERSION = "2023-06-01"
MAX_TOKENS = 4096
FINISHES = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


class _Block(msgspec.Struct, gc=False):
    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None


class _Reply(msgspec.Struct, gc=False):
    content: list[_Block]
    stop_reason: str | None
    usage: _Usage | None = None
    model: str | None = None


_decode = msgspec.json.Decoder(_Reply).decode


class AnthropicMessages(Dialect):
    name = "anthropic"
    path = "/messages"
    accepts = some_of(*"temperature top_p top_k max_tokens stop".split())
    option_names: ClassVar[Mapping[str, str]] = {"stop": "stop_sequences"}
    writes = frozenset({"system"})
    default_max_tokens = MAX_TOKENS
    key_variable = "ANTHROPIC_API_KEY"
    answers = "a message"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}

    def body(self, request: Request, model: str) -> dict[str, Json]:
        body: dict[str, Json] = {"model": model, "max_tokens": MAX_TOKENS}
        self.put_options(body, request)
        if isinstance(body.get("stop_sequences"), str):
            body["stop_sequences"] = [body["stop_sequences"]]
        system = [text for m in request.messages if m.role in ("system", "developer") for text in texts(m)]
        if system:
            body["system"] = "\n\n".join(system)
        body["messages"] = _turns(request)
        if request.tools:
            body["tools"] = [
                {
                    "name": tool["name"],
                    "description": tool.get("description", ""),
                    "input_schema": tool.get("parameters") or {"type": "object", "properties": {}},
                }
                for tool in request.tools
            ]
        return body

    def read(self, answer: bytes, request: Request) -> Completion:
        reply = _decode(answer)
        reply_texts = [block.text or "" for block in reply.content if block.type == "text"]
        thoughts = [block.thinking or "" for block in reply.content if block.type == "thinking"]
        return Completion(
            content="".join(reply_texts) if reply_texts else None,
            reasoning="\n".join(thoughts) or None,
            tool_calls=tuple(_call(block) for block in reply.content if block.type == "tool_use"),
            finish=FINISHES.get(reply.stop_reason or "", reply.stop_reason),
            usage=_counted(reply.usage) if reply.usage else None,
            model=reply.model,
            capture=lower(request.capture, "text"),
        )


def _turns(request: Request) -> msgspec.Raw:
    """The messages, those of one side after each other as one."""
    turns: list[tuple[str, list[bytes]]] = []
    for message, blocks in zip(request.messages, request.encoded_messages(_blocks), strict=True):
        if not blocks:
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if turns and turns[-1][0] == role:
            turns[-1][1].append(blocks)
        else:
            turns.append((role, [blocks]))
    return json_array(
        [b'{"role":"%b","content":[%b]}' % (role.encode(), b",".join(blocks)) for role, blocks in turns]
    )


def _blocks(message: Message) -> list[Json]:
    if message.role in ("system", "developer"):
        return []
    if message.role == "tool":
        result = parts(message, _text, _image) if isinstance(message.content, list) else message.content or ""
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": result}]
    blocks = parts(message, _text, _image)
    return blocks + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_of(call)}
        for call in message.tool_calls or ()
    ]


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _image(url: str) -> Json:
    if (match := _DATA_URL.fullmatch(url)) is None:
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {"type": "image", "source": {"type": "base64", "media_type": match[1], "data": match[2]}}


def _call(block: _Block) -> Call:
    if block.id is None or block.name is None or block.input is None:
        raise BadReply("a 'tool_use' block lacks 'id', 'name' or 'input'")
    return Call(id=block.id, name=block.name, arguments=encode(block.input).decode())


def _counted(usage: _Usage) -> Usage:
    """A prompt's tokens are counted in three places: read from the cache, written to it, and neither."""
    cached = usage.cache_read_input_tokens or 0
    return Usage(
        prompt_tokens=usage.input_tokens + cached + (usage.cache_creation_input_tokens or 0),
        completion_tokens=usage.output_tokens,
        cached_tokens=cached,
    )
