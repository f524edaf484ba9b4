"""How an episode opens: with the row's `prompt` or `messages`, or with what the prompt template makes of the row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windrow.records import Json, Message, Task
from windrow.tasks.prompts import PromptTemplate
from windrow.tasks.row_formats import format_of
from windrow.util.freeze import Freezer

ROLES = ("system", "developer", "user", "assistant", "tool")


def opening(task: Task, prompt: PromptTemplate | None) -> list[dict[str, Any]]:
    if prompt is not None:
        return prompt.messages(task.data or {})
    if task.get("messages") is not None:
        messages: list[dict[str, Any]] = task["messages"]
        return messages
    row_format = format_of(task.data or {}) if task.get("prompt") is None else None
    if row_format is not None:
        return row_format.opening_of(task.data or {})
    return [{"role": "user", "content": task["prompt"]}]


def check_opening(row: Mapping[str, Json]) -> None:
    """Raise ValueError with what is wrong with a row that is to open an episode."""
    prompt, messages = row.get("prompt"), row.get("messages")
    if prompt is None and messages is None:
        if (row_format := format_of(row)) is not None:
            row_format.opening_of(row)
            return
        raise ValueError(
            f"neither 'prompt' nor 'messages' is in the row (it has: {', '.join(row) or 'nothing'})"
        )
    if prompt is not None and messages is not None:
        raise ValueError("both 'prompt' and 'messages' are in the row; give one of them")
    if prompt is not None and not isinstance(prompt, str):
        raise ValueError(f"'prompt' must be a string, found {type(prompt).__name__}")
    if messages is not None:
        _check_messages(messages)
    if (row_format := format_of(row)) is not None and row_format.has_input(row):
        field = "prompt" if messages is None else "messages"
        opened = [{"role": "user", "content": prompt}] if messages is None else messages
        if _frozen(row_format.opening_of(row)) != _frozen(
            opened
        ):  # an export of ours has both, and they agree
            raise ValueError(f"the row has an input of its own beside {field!r}, which says something else")


def _frozen(messages: list[dict[str, Any]]) -> list[Message]:
    freeze = Freezer()
    return [freeze.message(message, "task") for message in messages]


def _check_messages(messages: Json) -> None:
    if not isinstance(messages, list) or not messages:
        raise ValueError("'messages' must be a list of at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ValueError(f"messages[{number}] must be an object with 'role' and 'content'")
        if message.get("role") not in ROLES:
            raise ValueError(f"messages[{number}]: 'role' must be one of {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
            raise ValueError(f"messages[{number}]: 'content' must be a string or a list of parts")
