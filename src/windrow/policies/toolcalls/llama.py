"""`llama`: {"name": …, "parameters": {…}} on a line of its own or after <|python_tag|>, several separated by `;`.

An object without both keys is text, unless it stands after the tag: there a call is meant.
"""

from __future__ import annotations

import re

from windrow.policies.toolcalls.base import (
    NotACall,
    Parsed,
    Reading,
    ToolSchemas,
    json_call,
    json_calls,
    json_end,
    schema_lines,
)
from windrow.records import Call

_BEGIN = re.compile(
    r"<\|python_(?:tag|start)\|>\s*|^[ \t]*(?=\{\s*[\"'](?:name|type|function|parameters)[\"']\s*:)", re.M
)
_NEXT = re.compile(r"\s*;\s*(?=\{)")
_KEYS = re.compile(r"[\"'](?:parameters|arguments)[\"']\s*:")
_END = re.compile(r"\s*(?:<\|(?:python_end|eom_id|eot_id)\|>|;\s*\Z)")


def describe(tools: ToolSchemas) -> str:
    return (
        "You have access to the following functions. To call one, respond with JSON and nothing else, "
        'in the form {"name": function name, "parameters": dictionary of argument name and its value}. '
        "Do not use variables. Separate several calls with a semicolon.\n\n"
        f"{schema_lines(tools)}"
    )


def parse(text: str, tools: ToolSchemas = ()) -> Parsed:
    reading = Reading(text)
    while begin := reading.next(_BEGIN):
        was_read = _read(reading, begin.end(), meant="python" in begin[0])
        while was_read and (follows := _NEXT.match(text, reading.position)):
            was_read = _read(reading, follows.end(), meant=True)
    return reading.done()


def _read(reading: Reading, start: int, *, meant: bool) -> bool:
    """Whether a call was read at `start`; `meant`: what stands there can only be a call."""
    text = reading.text
    reading.position = start
    try:
        end = json_end(text, start)
        if meant or _KEYS.search(text, start, end):
            for name, arguments in json_calls(text[start:end]):
                reading.call(name, arguments)
            closing = _END.match(text, end)
            reading.position = closing.end() if closing else end
            return True
        reading.keep(end)  # JSON that is no call
    except NotACall as problem:
        line = text.find("\n", start)
        end = line if line >= 0 else len(text)
        if meant or _KEYS.search(text, start, end):
            reading.wrong(str(problem), start, end)
            reading.position = end
        else:
            reading.keep(end)
    return False


def render_call(call: Call, tools: ToolSchemas = ()) -> str:
    return json_call(call, "parameters")


def render_result(name: str, content: str) -> str:
    return f"The result of {name}:\n{content}"
