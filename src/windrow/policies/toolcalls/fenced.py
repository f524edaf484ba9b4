"""`fenced`: a code block ```tool_call (or ```json) that holds {"name": …, "arguments": {…}}.

A block `tool_call` must be a call. A block `json`, or one without a word, is a call only if it has the keys of one:
models also show JSON that is none.
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

FENCE = "```"
_OPEN = re.compile(
    r"^[ \t]{0,20}```[ \t]{0,20}(?P<word>tool_calls?|json|)[ \t]{0,20}$|^```json(?=[ \t]{0,20}\{)", re.M
)


def describe(tools: ToolSchemas) -> str:
    return (
        f"You have access to the following functions:\n\n{schema_lines(tools)}\n\n"
        "To call one, write a code block tool_call that holds its name and its arguments as JSON, "
        "one block a call, and then wait for the result:\n\n"
        '```tool_call\n{"name": <function-name>, "arguments": <args-json-object>}\n```'
    )


def parse(text: str, tools: ToolSchemas = ()) -> Parsed:
    reading = Reading(text)
    while fence := reading.next(_OPEN):
        _block(reading, fence)
    return reading.done()


def _block(reading: Reading, fence: re.Match[str]) -> None:
    """Read one block; the reply goes on after its closing fence."""
    text = reading.text
    meant = (fence["word"] or "").startswith("tool_call")
    begin = skip_space(text, fence.end())
    try:
        end = json_end(text, begin)
        after = skip_space(text, end)
        if not meant and not is_call(text[begin:end]) and not text.startswith("[", begin):
            reading.keep(_after_fence(text, begin))
            return
        if after < len(text) and not text.startswith(FENCE, after):
            raise NotACall(f"something stands between the call and the closing {FENCE}")
        for name, arguments in json_calls(text[begin:end]):
            reading.call(name, arguments)
        reading.position = _after_fence(text, after)
    except NotACall as problem:
        end = _after_fence(text, begin)
        if meant or _looks_meant(text[begin:end]):
            reading.wrong(str(problem), begin, end)
            reading.position = end
        else:
            reading.keep(end)


def _looks_meant(block: str) -> bool:
    return "name" in block and ("arguments" in block or "parameters" in block)


def _after_fence(text: str, start: int) -> int:
    close = text.find(FENCE, start)
    return close + len(FENCE) if close >= 0 else len(text)


def render_call(call: Call, tools: ToolSchemas = ()) -> str:
    return f"{FENCE}tool_call\n{json_call(call, 'arguments')}\n{FENCE}"


def render_result(name: str, content: str) -> str:
    return f"{FENCE}tool_result\n{content}\n{FENCE}"
