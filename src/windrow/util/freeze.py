"""Frozen copies: a record holds JSON that no user code can change later.

Non-finite numbers are refused, since JSON has none. Half a surrogate pair, which is not Unicode, is replaced by U+FFFD and
counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from windrow.records import Call, Json, Message, Origin, Task

MAX_INT_BITS = 8192  # no reader takes an integer of any length; Python itself stops at 4,300 digits
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Freezer:
    """`repaired` counts the strings in which half a surrogate pair was replaced; `parts`: a message had content in parts."""

    def __init__(self) -> None:
        self.repaired = 0
        self.parts = False

    def text(self, text: str) -> str:
        if type(text) is not str:
            text = str.__str__(text)  # a subclass, which the encoder would not take
        if text.isascii():
            return text
        try:
            text.encode()
        except UnicodeEncodeError:
            self.repaired += 1
            return _LONE_SURROGATE.sub("\ufffd", text)
        return text

    def value(self, value: Any, what: str) -> Json:
        """A deep copy of a JSON value; ValueError says which part is not JSON."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            if value.bit_length() > MAX_INT_BITS:
                raise ValueError(f"{what} is an integer of more than {MAX_INT_BITS:,} bits")
            return int(value)
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, float):
            return finite(float(value), what)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(item, f"{what}.{key}") for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item, f"{what}[{number}]") for number, item in enumerate(value)]
        if isinstance(value, msgspec.Struct):
            return self.value(msgspec.to_builtins(value), what)
        if hasattr(value, "item") and callable(value.item):  # a numpy or torch scalar
            return self.value(value.item(), what)
        raise ValueError(f"{what} holds a {type(value).__name__}, which is not JSON")

    def numbers(self, values: Mapping[str, Any] | None, what: str) -> dict[str, float] | None:
        if values is None:
            return None
        return {self.text(str(name)): number(value, f"{what}[{name!r}]") for name, value in values.items()}

    def message(
        self, message: Message | Mapping[str, Any], origin: Origin, turn: int | None = None
    ) -> Message:
        """A copy of a message, which may be a `Message` or a dict; ValueError says what is wrong with it."""
        role: Any
        if isinstance(message, Message):
            role, content, calls = message.role, message.content, message.tool_calls
            name, call_id, reasoning = message.name, message.tool_call_id, message.reasoning
        else:
            unknown = set(message) - _MESSAGE_FIELDS
            if unknown:
                raise ValueError(f"a message has an unknown field {min(unknown)!r}")
            role, content = message.get("role"), message.get("content")
            calls = tuple(_call(call) for call in message.get("tool_calls") or ()) or None
            name, call_id, reasoning = (message.get(f) for f in ("name", "tool_call_id", "reasoning"))
        if role not in _ROLES:
            raise ValueError(f"a message has the role {role!r}; expected one of {', '.join(sorted(_ROLES))}")
        if isinstance(content, str):
            content = self.text(content)
        elif content is not None:
            content = self.value(content, "message content")
            self.parts = True
            if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
                raise ValueError("a message's content must be a string or a list of parts")
        return Message(
            role=role,
            content=content,
            origin=origin,
            tool_calls=tuple(self._call(call) for call in calls) if calls else None,
            tool_call_id=self._optional_text(call_id, "tool_call_id"),
            name=self._optional_text(name, "name"),
            reasoning=self._optional_text(reasoning, "reasoning"),
            turn=turn,
        )

    def reply(self, content: str | None, calls: Sequence[Call], reasoning: str | None, turn: int) -> Message:
        """The message of a policy's reply."""
        return Message(
            role="assistant",
            content=self.optional(content),
            origin="policy",
            tool_calls=tuple(self._call(call) for call in calls) if calls else None,
            reasoning=self.optional(reasoning),
            turn=turn,
        )

    def optional(self, text: str | None) -> str | None:
        return text if text is None else self.text(text)

    def _call(self, call: Call) -> Call:
        return Call(id=self.text(call.id), name=self.text(call.name), arguments=self.text(call.arguments))

    def _optional_text(self, text: Any, field: str) -> str | None:
        if text is None or isinstance(text, str):
            return self.text(text) if text else text
        raise ValueError(f"a message's {field!r} is {text!r}, which is not a string")


def copied(value: Json) -> Json:
    """A JSON value that shares nothing mutable with `value`, for user code that may change it."""
    if isinstance(value, dict):
        return {key: item if type(item) in _SCALARS else copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def copied_task(task: Task) -> Task:
    return msgspec.structs.replace(task, data=copied(task.data))


def copied_messages(messages: Iterable[Message]) -> tuple[Message, ...]:
    return tuple(
        message
        if isinstance(message.content, str | None)
        else msgspec.structs.replace(message, content=copied(message.content))
        for message in messages
    )


_SCALARS = frozenset({str, int, float, bool, type(None)})  # immutable
_MESSAGE_FIELDS = {"role", "content", "tool_calls", "tool_call_id", "name", "reasoning"}
_ROLES = {"system", "developer", "user", "assistant", "tool"}


def finite(value: float, what: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{what} is {value}, which is not a finite number")
    return value


def number(value: Any, what: str) -> float:
    """A finite number. Booleans and scalars of array libraries count as numbers."""
    if isinstance(value, bool):
        return float(value)
    if hasattr(value, "item") and callable(value.item):
        value = value.item()
    if not isinstance(value, int | float):
        raise ValueError(f"{what} is {value!r}, which is not a number")
    return finite(float(value), what)


def _call(call: Any) -> Call:
    try:
        function = call["function"]
        return Call(id=str(call["id"]), name=str(function["name"]), arguments=str(function["arguments"]))
    except (TypeError, KeyError) as problem:
        raise ValueError(f"a tool call in a message lacks {problem}") from None
