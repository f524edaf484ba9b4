"""What a text format of tool calls is, and the reading of JSON that the formats share.

Nothing is repaired: a call that is not what the format says is told to the model in words, and never guessed at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Protocol

import msgspec

from windrow.records import Call, Json

MAX_BLOCKS = 256  # looked at in one reply; so that reading takes linear time, whatever the reply is
SHOWN_CHARS = 80

ToolSchemas = Sequence[dict[str, Json]]  # {name, description, parameters} of each


class Parsed(msgspec.Struct, frozen=True):
    """A reply taken apart: the text around the calls, the calls in order, and what could not be read, in words."""

    content: str
    calls: tuple[Call, ...] = ()
    malformed: tuple[str, ...] = ()


class Format(Protocol):
    """How a model writes tool calls as text. Each format is a module with these functions."""

    def describe(self, tools: ToolSchemas) -> str:
        """What the system message says: the tools, and how to call them."""

    def parse(self, text: str, tools: ToolSchemas = ()) -> Parsed:
        """Take a reply apart, in linear time; it never raises. `parse(render_call(call)).calls` is that call."""

    def render_call(self, call: Call, tools: ToolSchemas = ()) -> str:
        """A call as the model would have written it."""

    def render_result(self, name: str, content: str) -> str:
        """A tool's result as the model is shown it."""


class Reading:
    """What has been found in a reply so far, up to `position`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self._blocks = 0
        self._around: list[str] = []
        self._calls: list[Call] = []
        self._malformed: list[str] = []

    def next(self, begin: re.Pattern[str]) -> re.Match[str] | None:
        """Where the next call may begin; the text before it is kept, and reading goes on after the match."""
        match = begin.search(self.text, self.position)
        if match is None:
            return None
        self._blocks += 1
        if self._blocks > MAX_BLOCKS:
            self._malformed.append(f"more than {MAX_BLOCKS} calls in one reply: the rest was not read")
            return None
        self.keep(match.start())
        self.position = match.end()
        return match

    def keep(self, end: int) -> None:
        """The text up to `end` is no part of a call."""
        self._around.append(self.text[self.position : end])
        self.position = end

    def call(self, name: str, arguments: str) -> None:
        self._calls.append(Call(id=f"call_{len(self._calls)}", name=name, arguments=arguments))

    def wrong(self, what: str, start: int, end: int) -> None:
        """The text from `start` to `end` was meant as a call; `what` is wrong with it."""
        shown = " ".join(self.text[start : min(end, start + SHOWN_CHARS + 1)].split())
        dots = "…" if len(shown) > SHOWN_CHARS else ""
        self._malformed.append(f"{what}: {shown[:SHOWN_CHARS]}{dots}")

    def done(self) -> Parsed:
        self.keep(len(self.text))
        return Parsed("".join(self._around).strip(), tuple(self._calls), tuple(self._malformed))


class NotACall(Exception):
    """`str(problem)` says what is wrong with the call."""


class _JsonCall(msgspec.Struct):
    """A call as a JSON object; `arguments` keeps the model's own text."""

    name: Json = None
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_SPACE = re.compile(r"\s*")
_scan = json.JSONDecoder().raw_decode
_decode_call = msgspec.json.Decoder(_JsonCall).decode
_decode_calls = msgspec.json.Decoder(list[_JsonCall]).decode
_decode_object = msgspec.json.Decoder(dict[str, Json]).decode


def skip_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    return match.end() if match else start


def json_end(text: str, start: int) -> int:
    """Where the JSON value that begins at `start` ends; NotACall when there is none."""
    try:
        return _scan(text, start)[1]
    except json.JSONDecodeError as problem:
        what = problem.msg[:1].lower() + problem.msg[1:]
        raise NotACall(f"the call is not valid JSON ({what})") from None
    except (RecursionError, ValueError):
        raise NotACall("the call is not valid JSON (nested too deeply, or too long a number)") from None


def json_calls(text: str) -> list[tuple[str, str]]:
    """(name, arguments) of the call or list of calls that `text` is; NotACall says what is wrong with it."""
    try:
        many = text.startswith("[")
        calls = _decode_calls(text) if many else [_decode_call(text)]
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise NotACall(f"the call is not a JSON object ({problem})") from None
    if not calls:
        raise NotACall("the list of calls is empty")
    return [_checked(call) for call in calls]


def object_text(text: str) -> str:
    """`text` if it is a JSON object; NotACall otherwise. An empty text is not an empty object."""
    try:
        _decode_object(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise NotACall(f"the arguments are not a JSON object ({problem})") from None
    return text


def is_call(text: str) -> bool:
    """Whether `text` is a JSON object that has the keys of a call."""
    try:
        call = _decode_call(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return call.name is not None and (
        call.arguments is not msgspec.UNSET or call.parameters is not msgspec.UNSET
    )


def schema_lines(tools: ToolSchemas) -> str:
    """One JSON object a line, as the chat templates of these models list tools."""
    wrapped = ({"type": "function", "function": tool} for tool in tools)
    return "\n".join(json.dumps(tool, ensure_ascii=False) for tool in wrapped)


def json_call(call: Call, key: str) -> str:
    """A call as a JSON object, its arguments under `key` in their own text."""
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "{key}": {call.arguments or "{}"}}}'


def _checked(call: _JsonCall) -> tuple[str, str]:
    if not isinstance(call.name, str) or not call.name:
        raise NotACall('the call has no "name"')
    if isinstance(call.arguments, msgspec.Raw) and isinstance(call.parameters, msgspec.Raw):
        raise NotACall(f'the call of {call.name!r} has both "arguments" and "parameters"')
    raw = call.arguments if isinstance(call.arguments, msgspec.Raw) else call.parameters
    if not isinstance(raw, msgspec.Raw):
        raise NotACall(f'the call of {call.name!r} has no "arguments" (without any, write {{}})')
    return call.name, object_text(bytes(raw).decode())
