"""Exchanges that show a small model how a call looks: it repeats what was done before it, not what it was told.

Measured on SmolLM2-135M, four prompts that want a sum: with the description alone 0 of 4 replies called, in each of
the five formats; after three such exchanges 12 of 16 did (`hermes`, temperature 0.7). A task whose own messages show
a call needs none of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle, islice

from windrow.policies.toolcalls.base import Format, ToolSchemas
from windrow.records import Call, Json, Message

COUNT = 3
_NUMBERS = (5, 8, 20, 1, 7, 12)
_WORDS = ("apple", "river", "stone")


def examples(tools: ToolSchemas, form: Format) -> Iterator[Message]:
    """Somebody asks for a call, the model makes it; with made-up values of the right types, the same every time."""
    for turn, tool in enumerate(islice(cycle(tools), COUNT)):
        arguments = _arguments(tool.get("parameters"), turn)
        values = " and ".join(f"{name} = {json.dumps(value)}" for name, value in arguments.items())
        asked = f"Call {tool['name']} with {values}." if values else f"Call {tool['name']}."
        call = Call(id=f"example_{turn}", name=str(tool["name"]), arguments=json.dumps(arguments))
        yield Message(role="user", content=asked, origin="task")
        yield Message(role="assistant", content=form.render_call(call, tools), origin="task")


def _arguments(schema: Json, turn: int) -> dict[str, Json]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    names = schema.get("required") or list(properties)
    return {
        name: _value(properties[name], turn * len(names) + index)
        for index, name in enumerate(names)
        if name in properties
    }


def _value(schema: Json, number: int) -> Json:
    declared = schema if isinstance(schema, dict) else {}
    if declared.get("enum"):
        return declared["enum"][number % len(declared["enum"])]
    kind = declared.get("type", "string")
    if kind in ("integer", "number"):
        return _NUMBERS[number % len(_NUMBERS)]
    others: dict[str, Json] = {"boolean": True, "array": [], "object": {}, "null": None}
    return others.get(kind, _WORDS[number % len(_WORDS)]) if isinstance(kind, str) else None
