"""`xml`: <function=NAME><parameter=KEY>value</parameter></function>, as Qwen3-Coder writes it; <invoke name="…"> too.

A value is text where the tool's schema says string; elsewhere it is JSON if it reads as JSON, else text. The tags
around a call (<tool_call>, <function_calls>) may be missing. Tags do not nest: a value that holds one of ours is
malformed, since nobody can say where it ends.
"""

from __future__ import annotations

import json
import re

import msgspec

from windrow.policies.toolcalls.base import (
    NotACall,
    Parsed,
    Reading,
    ToolSchemas,
    object_text,
    schema_lines,
)
from windrow.records import Call, Json

_TAG = re.compile(
    r"<(?P<close>/?)(?P<kind>function|invoke|parameter)(?!\w)"
    r"(?:=(?P<bare>[^<>\s]{0,200})|\s{1,20}name=\"(?P<quoted>[^\"<>]{0,200})\"|(?<=/function)|(?<=/invoke)|(?<=/parameter))"
    r"\s{0,20}(?P<end>>?)"
)
_AROUND = re.compile(r"</?(?:tool_call|function_calls|tool_calls)>")
_OURS = re.compile(r"</?(?:function|invoke|parameter)\b")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_object = msgspec.json.Decoder(dict[str, Json]).decode


def describe(tools: ToolSchemas) -> str:
    return (
        f"# Tools\n\nYou have access to the following functions:\n\n<tools>\n{schema_lines(tools)}\n</tools>\n\n"
        "If you choose to call a function, reply in the following format:\n\n"
        "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
        "<parameter=example_parameter_2>\nvalue_2\n</parameter>\n</function>\n</tool_call>\n\n"
        "Every call begins with <function=…> and ends with </function>; every parameter ends with </parameter>. "
        "Text may stand before a call, not after it."
    )


def parse(text: str, tools: ToolSchemas = ()) -> Parsed:
    reading = Reading(text)
    while tag := reading.next(_TAG):
        if tag["close"]:
            continue  # the end of something that was told already
        try:
            _function(reading, tag, tools)
        except NotACall as problem:
            end = _resume(text, tag)
            reading.wrong(str(problem), tag.start(), end)
            reading.position = end
    parsed = reading.done()
    return msgspec.structs.replace(parsed, content=_AROUND.sub("", parsed.content).strip())


def _function(reading: Reading, tag: re.Match[str], tools: ToolSchemas) -> None:
    """Read a call from its opening tag to its closing one, and add it."""
    text = reading.text
    name = _name(tag)
    if tag["kind"] == "parameter":
        raise NotACall(f"the parameter {name!r} stands outside of a function")
    arguments: dict[str, Json] = {}
    between = ""
    position = tag.end()
    while True:
        inner = _TAG.search(text, position)
        if inner is None:
            raise NotACall(f"the function {name!r} is not closed")
        between += text[position : inner.start()]
        position = inner.end()
        if inner["close"] and inner["kind"] != "parameter":
            break
        if inner["close"] or inner["kind"] != "parameter":
            raise NotACall(f"{inner[0]} inside of the function {name!r}")
        key = _name(inner)
        if key in arguments:
            raise NotACall(f"the parameter {key!r} of {name!r} is given twice")
        closing = _TAG.search(text, position)
        if closing is None or not closing["close"] or closing["kind"] != "parameter" or not closing["end"]:
            raise NotACall(f"the parameter {key!r} of {name!r} is not closed")
        value = text[position : closing.start()]
        arguments[key] = _value(value, is_text=_is_text(name, key, tools))
        position = closing.end()
    reading.call(name, _arguments(name, arguments, between.strip()))
    reading.position = position


def _arguments(name: str, arguments: dict[str, Json], between: str) -> str:
    """The parameters as an object; or, where there are none, the JSON object that stands in their place."""
    if between and (arguments or not between.startswith("{")):
        raise NotACall(f"text stands between the parameters of {name!r}")
    try:
        return object_text(between) if between else _encode(arguments).decode()
    except (UnicodeError, RecursionError):
        raise NotACall(f"a parameter of {name!r} is not valid text") from None


def _name(tag: re.Match[str]) -> str:
    name: str = tag["bare"] or tag["quoted"] or ""
    if not name or not tag["end"]:
        raise NotACall(f"{tag[0]} is not a whole tag with a name")
    return name


def _resume(text: str, tag: re.Match[str]) -> int:
    """Where a broken call ends: after its function's closing tag, or before the next function's opening one."""
    position = tag.end()
    while inner := _TAG.search(text, position):
        if inner["kind"] != "parameter":
            return inner.end() if inner["close"] else inner.start()
        position = inner.end()
    return len(text)


def _value(text: str, *, is_text: bool) -> Json:
    text = text.removeprefix("\n").removesuffix("\n")
    if is_text:
        return text
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def _is_text(name: str, key: str, tools: ToolSchemas) -> bool:
    """Whether the schema of the tool says that this parameter is a string."""
    schema = next((tool.get("parameters") for tool in tools if tool.get("name") == name), None)
    properties = schema.get("properties") if isinstance(schema, dict) else None
    declared = properties.get(key) if isinstance(properties, dict) else None
    return isinstance(declared, dict) and declared.get("type") == "string"


def render_call(call: Call, tools: ToolSchemas = ()) -> str:
    try:
        values = _decode_object(call.arguments or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        lines = [call.arguments]  # as broken as it is
    else:
        lines = [
            f"<parameter={key}>\n{_shown(value, _is_text(call.name, key, tools))}\n</parameter>"
            for key, value in values.items()
        ]
    return "\n".join(["<tool_call>", f"<function={call.name}>", *lines, "</function>", "</tool_call>"])


def _shown(value: Json, is_text: bool) -> str:
    """A value so that it is read back as it was: strings that would read as JSON, or as a tag, are written as JSON."""
    if isinstance(value, str) and (
        is_text or (_value(value, is_text=False) == value and not _OURS.search(value))
    ):
        return value
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def render_result(name: str, content: str) -> str:
    return f"<tool_response>\n{content}\n</tool_response>"
