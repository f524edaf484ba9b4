"""`sft`: conversations for supervised fine-tuning, one JSON object a line, tools and tool calls included.

Two forms, because no one line serves both readers: OpenAI takes the arguments of a call as text and refuses fields it
does not know; a chat template of Hugging Face renders arguments that are an object, and would quote a text again.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from windrow.errors import UsageError
from windrow.exports.base import Example, Exporter, Unfit
from windrow.exports.conversations import Conversation, conversations
from windrow.records import Call, Json, Message, Rollout

Form = Literal["hf", "openai"]
NOTHING_SAID = "the policy said nothing"
IMAGES = "images that stand in blobs/"


class Sft(Exporter):
    """A row a conversation: `messages` and `tools`. The form `hf` has columns beside them that say where it is from."""

    def __init__(self, *, form: Form = "hf") -> None:
        super().__init__()
        if form not in get_args(Form):
            raise UsageError(f"form {form!r}: expected one of {', '.join(get_args(Form))}")
        self._openai = form == "openai"

    def rows(self, example: Example) -> list[dict[str, Json]]:
        rollout = example.rollout
        rows_of = conversations(rollout)
        if not rows_of:
            raise Unfit(NOTHING_SAID)
        if self._openai and any(message.reasoning for message in rollout.messages):
            self.notes["rollouts without their reasoning, for which the form openai has no place"] += 1
        make = self._openai_row if self._openai else self._hf_row
        return [make(rollout, conversation, number) for number, conversation in enumerate(rows_of)]

    def _openai_row(self, rollout: Rollout, conversation: Conversation, _: int) -> dict[str, Json]:
        messages = []
        for number in conversation.messages:
            message = rollout.messages[number]
            row = _openai_message(message)
            if message.role == "assistant" and number not in conversation.sampled:
                row["weight"] = 0  # not said by this policy, or trained in an earlier row
            messages.append(row)
        tools = [{"type": "function", "function": tool} for tool in rollout.tools]
        return {"messages": messages, **({"tools": tools} if tools else {})}

    def _hf_row(self, rollout: Rollout, conversation: Conversation, segment: int) -> dict[str, Json]:
        tools = [{"type": "function", "function": tool} for tool in rollout.tools]
        return {
            "messages": [_hf_message(rollout.messages[number]) for number in conversation.messages],
            # As text, which trainers decode: `datasets` would give every schema the fields of all the others.
            "tools": msgspec.json.encode(tools).decode() if tools else None,
            "rollout_id": rollout.id,
            "segment": segment,
            "group": rollout.group,
            "sample": rollout.sample,
            "task": rollout.task.key,
            "model": rollout.policy.model,
            "status": rollout.status,
            "reward": rollout.reward,
        }


def _openai_message(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.tool_calls:
        row["tool_calls"] = [_call(call, call.arguments) for call in message.tool_calls]
    elif row["content"] is None:
        row["content"] = ""
    return row | _named(message)


def _hf_message(message: Message) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role  # the templates do not know a developer
    row: dict[str, Any] = {"role": role, "content": _content(message) or ""}
    if message.reasoning:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        row["tool_calls"] = [_call(call, _parsed(call.arguments)) for call in message.tool_calls]
    return row | _named(message)


def _named(message: Message) -> dict[str, str]:
    named = {"tool_call_id": message.tool_call_id, "name": message.name}
    return {key: value for key, value in named.items() if value is not None}


def _content(message: Message) -> str | list[dict[str, Json]] | None:
    if isinstance(message.content, list) and any("blob" in part for part in message.content):
        raise Unfit(IMAGES)
    return message.content


def _call(call: Call, arguments: Json) -> dict[str, Json]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _parsed(arguments: str) -> Json:
    """The object that the policy wrote, or its own text where that is none."""
    try:
        found = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return arguments
    return found if isinstance(found, dict) else arguments
