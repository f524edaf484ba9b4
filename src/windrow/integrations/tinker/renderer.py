"""A renderer that keeps messages: what tinker-cookbook's environments take for ids names a conversation or a reply.

So an environment of theirs meets any policy: its prompts reach the policy as messages, and the policy's replies reach it as it
would have parsed them. Which ids were sampled, the record says. Needs tinker-cookbook.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import tinker
from tinker_cookbook.renderers.base import (
    ParseTermination,
    RenderContext,
    RenderedMessage,
    Renderer,
    ToolCall,
    UnparsedToolCall,
    get_text_content,
)

from windrow.errors import EnvError
from windrow.policies.wire import decode_object
from windrow.records import Call, Json, Message

MAX_KEPT = 10_000  # conversations and replies: more than episodes that run at a time
_ROLES = ("system", "developer", "user", "assistant", "tool")


class MessageRenderer(Renderer):  # type: ignore[misc]  # theirs has no types here
    """One number per conversation and per reply; it is never sent anywhere."""

    def __init__(self) -> None:
        super().__init__(None)  # there is no tokenizer: nothing is split
        self._numbers = count()
        self._prompts: dict[int, list[dict[str, Any]]] = {}
        self._replies: dict[int, tuple[dict[str, Any], ParseTermination]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return MessageRenderer, ()

    @property
    def has_extension_property(self) -> bool:
        return True

    def get_stop_sequences(self) -> list[str] | list[int]:
        return []

    def render_message(self, message: Any, ctx: RenderContext) -> RenderedMessage:
        raise EnvError("this environment renders single messages, which has no meaning without its tokenizer")

    def create_conversation_prefix_with_tools(self, tools: Any, system_prompt: str = "") -> Any:
        raise EnvError(
            "this environment brings tools of its own, which are not bridged; use --env tool with --tool"
        )

    def build_generation_prompt(self, messages: Any, role: Any = "assistant", prefill: Any = None) -> Any:
        if prefill:
            raise EnvError("this environment begins the reply itself (prefill), which is not bridged")
        return tinker.ModelInput.from_ints(
            [self._kept(self._prompts, [dict(message) for message in messages])]
        )

    def parse_response(self, response: list[int]) -> Any:
        message, termination = self._replies[response[0]]
        return dict(message), termination

    def prompt(self, observation: Any) -> list[dict[str, Json]]:
        """The conversation that an observation stands for, in our form."""
        ids = observation.to_ints()
        conversation = self._prompts.pop(ids[0], None) if len(ids) == 1 else None
        if conversation is None:
            raise EnvError(
                "the environment's observation was not made by the renderer that its factory was given"
            )
        return [_ours(message) for message in conversation]

    def said(self, reply: Message, *, cut: bool) -> list[int]:
        """The action that stands for a reply."""
        ended = ParseTermination.MALFORMED if cut else ParseTermination.STOP_SEQUENCE
        return [self._kept(self._replies, (_theirs(reply), ended))]

    def _kept(self, place: dict[int, Any], value: Any) -> int:
        """The number of what is kept; the oldest goes where there are too many, such as prompts that nobody asked for."""
        number = next(self._numbers)
        place[number] = value
        if len(place) > MAX_KEPT:
            del place[next(iter(place))]
        return number


def _ours(message: dict[str, Any]) -> dict[str, Json]:
    """A role of the environment's own is the policy's: `player` in their guessing game."""
    content = message.get("content") or ""
    parts = [] if isinstance(content, str) else content
    if any(part.get("type") not in ("text", "thinking") for part in parts):
        raise EnvError("this environment shows more than text, which is not bridged")
    role = message["role"] if message["role"] in _ROLES else "assistant"
    return {"role": role, "content": content if isinstance(content, str) else get_text_content(message)}


def _theirs(reply: Message) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        thinking = {"type": "thinking", "thinking": reply.reasoning}
        message["content"] = [thinking, {"type": "text", "text": reply.text}]
    calls = reply.tool_calls or ()
    readable = [call for call in calls if decode_object(call.arguments or "{}") is not None]
    if readable:
        message["tool_calls"] = [_call(call) for call in readable]
    if len(readable) < len(calls):
        message["unparsed_tool_calls"] = [
            UnparsedToolCall(raw_text=call.arguments, error="not a JSON object")
            for call in calls
            if call not in readable
        ]
    return message


def _call(call: Call) -> ToolCall:
    function = ToolCall.FunctionBody(name=call.name, arguments=call.arguments or "{}")
    return ToolCall(function=function, id=call.id)
