"""`hermes`: <tool_call>{"name": …, "arguments": {…}}</tool_call>, as Hermes, Qwen and SmolLM2 were trained.

A list of calls between the tags counts as its members, and the last closing tag may be missing: servers take it for
a stop token. A reply that is a call without its tags is malformed, not an answer.
"""

from __future__ import annotations

import re

from windrow.policies.toolcalls.base import (
    NotACall,
    Parsed,
    Reading,
    ToolSchemas,
    is_call,
    json_call,
    json_calls,
    json_end,
    schema_lines,
    skip_space,
)
from windrow.records import Call

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TAG = re.compile(r"</?tool_call>")
_FENCE = re.compile(r"\A```[a-z_]*\n|\n?```\Z")


def describe(tools: ToolSchemas) -> str:
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>\n{schema_lines(tools)}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )


def parse(text: str, tools: ToolSchemas = ()) -> Parsed:
    reading = Reading(text)
    while tag := reading.next(_TAG):
        if tag[0] == CLOSE:
            reading.wrong(f"{CLOSE} without {OPEN} before it", tag.start(), tag.end())
        else:
            reading.position = _block(reading, tag.end())
    if reading.position == 0 and is_call(_FENCE.sub("", text.strip())):
        reading.wrong(f"a call must stand between {OPEN} and {CLOSE}", 0, len(text))
    return reading.done()


def _block(reading: Reading, start: int) -> int:
    """Read the call after an opening tag; returns where the reply goes on."""
    text = reading.text
    begin = skip_space(text, start)
    try:
        end = json_end(text, begin)
        after = skip_space(text, end)
        if after < len(text) and not text.startswith((CLOSE, OPEN), after):
            raise NotACall(f"something stands between the call and {CLOSE}")
        for name, arguments in json_calls(text[begin:end]):
            reading.call(name, arguments)
    except NotACall as problem:
        tag = _TAG.search(text, begin)
        end = after = tag.start() if tag else len(text)
        reading.wrong(str(problem), begin, end)
    return after + len(CLOSE) if text.startswith(CLOSE, after) else after


def render_call(call: Call, tools: ToolSchemas = ()) -> str:
    return f"{OPEN}\n{json_call(call, 'arguments')}\n{CLOSE}"


def render_result(name: str, content: str) -> str:
    return f"<tool_response>\n{content}\n</tool_response>"
