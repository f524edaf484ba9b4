"""`react`: Thought, Action, Action Input (a JSON object), Observation.

Reading ends at the first `Observation:`: results come from the tools, never from the model. A `Final Answer:` beside
an action does not count, since it was written before the action's result.
"""

from __future__ import annotations

import json
import re

from windrow.policies.toolcalls.base import (
    NotACall,
    Parsed,
    Reading,
    ToolSchemas,
    json_end,
    object_text,
    skip_space,
)
from windrow.records import Call

_LABEL = re.compile(
    r"^[ \t]{0,20}[*_]{0,2}(?P<label>Action Input|Action|Observation)"
    r"[ \t]{0,20}\d{0,4}[*_]{0,2}[ \t]{0,20}:[*_]{0,2}",
    re.M | re.I,
)


def describe(tools: ToolSchemas) -> str:
    listed = "\n".join(
        f"{tool['name']}: {tool.get('description') or ''} "
        f"Arguments: {json.dumps(tool.get('parameters') or {}, ensure_ascii=False)}"
        for tool in tools
    )
    return (
        f"You have access to the following tools:\n\n{listed}\n\nUse the following format:\n\n"
        "Thought: you should always think about what to do\n"
        f"Action: the tool to use, one of: {', '.join(str(tool['name']) for tool in tools)}\n"
        "Action Input: the arguments of the tool, as a JSON object\n"
        "Observation: the result of the tool (it is given to you: never write it yourself)\n"
        "… (Thought, Action, Action Input and Observation can repeat)\n"
        "Thought: I now know the final answer\n"
        "Final Answer: the final answer"
    )


def parse(text: str, tools: ToolSchemas = ()) -> Parsed:
    reading = Reading(text)
    while label := reading.next(_LABEL):
        kind = label["label"].lower()
        if kind == "observation":
            reading.position = len(text)
        elif kind == "action":
            _action(reading, label)
        else:
            reading.position = end = _end_of_line(text, label.end())
            reading.wrong("'Action Input:' without 'Action:' before it", label.start(), end)
    return reading.done()


def _action(reading: Reading, label: re.Match[str]) -> None:
    text = reading.text
    reading.position = line = _end_of_line(text, label.end())
    name = text[label.end() : line].strip().strip("`*[]").strip()
    after = _LABEL.match(text, _next_line(text, line))
    try:
        if after is None or after["label"].lower() != "action input":
            raise NotACall("'Action:' without 'Action Input:' on the next line")
        if not name:
            raise NotACall("'Action:' without the name of a tool")
        begin = _unfenced(text, skip_space(text, after.end()))
        reading.position = _end_of_line(text, begin)
        if not text.startswith("{", begin):
            raise NotACall(f"'Action Input:' of {name!r} must be a JSON object")
        end = json_end(text, begin)
        reading.position = rest = _end_of_line(text, end)
        if text[end:rest].strip(" \t`"):
            raise NotACall(f"something stands after the JSON object of {name!r}")
        reading.call(name, object_text(text[begin:end]))
        reading.position = _fence_end(text, rest)
    except NotACall as problem:
        reading.wrong(str(problem), label.start(), reading.position)


def _next_line(text: str, start: int) -> int:
    """The start of the next line that is not empty."""
    line_start = skip_space(text, start)
    return text.rfind("\n", start, line_start) + 1 if "\n" in text[start:line_start] else line_start


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return end if end >= 0 else len(text)


_FENCE = re.compile(r"```[a-z]{0,20}\s*")
_FENCE_CLOSE = re.compile(r"\n```[ \t]*$", re.M)


def _unfenced(text: str, start: int) -> int:
    match = _FENCE.match(text, start)
    return match.end() if match else start


def _fence_end(text: str, start: int) -> int:
    match = _FENCE_CLOSE.match(text, start)
    return match.end() if match else start


def render_call(call: Call, tools: ToolSchemas = ()) -> str:
    return f"Action: {call.name}\nAction Input: {call.arguments or '{}'}"


def render_result(name: str, content: str) -> str:
    return f"Observation: {content}"
