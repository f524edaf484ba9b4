"""What a judge is shown of a rollout: what was said, never what was thought, and so that it cannot pose as the question.

The material stands between lines that begin with a marker made from the material itself: a text that held its own
marker could not be written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from windrow.identity import digest
from windrow.records import Message
from windrow.util.blobs import is_blob

Shows = Literal["transcript", "reply"]
Section = tuple[str, str]  # who speaks, and what is said

MARKER_CHARS = 12
_HIDDEN_PARTS = ("thinking", "redacted_thinking", "reasoning")
_THINKING = re.compile(r"\A\s*<think>.*?(?:</think>\s*|\Z)", re.S)


def without_thinking(text: str) -> str:
    """The text after a <think> block that it begins with; nothing, where that was cut off."""
    return _THINKING.sub("", text, count=1)


def text_of(message: Message) -> str:
    """What a message says: its text, its calls, a word for each image; no reasoning."""
    if message.content is None or isinstance(message.content, str):
        text = message.content or ""
    else:
        text = "".join(
            str(part["text"])
            if "text" in part
            else f"({'image' if is_blob(part) else part.get('type', 'part')})"
            for part in message.content
            if part.get("type") not in _HIDDEN_PARTS
        )
    if message.origin == "policy":
        text = without_thinking(text)
    calls = [f"(calls {call.name} with {call.arguments})" for call in message.tool_calls or ()]
    return "\n".join([text, *calls] if text or not calls else calls)


def reply_of(messages: Sequence[Message]) -> str:
    """What the policy said last."""
    return next((text_of(message) for message in reversed(messages) if message.origin == "policy"), "")


def opening_of(messages: Sequence[Message]) -> list[Section]:
    """What was said before the policy's first word."""
    first = next((n for n, message in enumerate(messages) if message.origin == "policy"), len(messages))
    return [(message.role, text_of(message)) for message in messages[:first]]


def answer_of(messages: Sequence[Message], shows: Shows, *, called: str) -> list[Section]:
    """What the policy said, and what came of it: all from its first word on, or its last word alone."""
    opening = len(opening_of(messages))
    answer_messages = [(message.role, message) for message in messages[opening:]]
    if shows == "reply" or len(answer_messages) < 2:
        return [(called, reply_of(messages))]
    return [(f"{called}, {role}", text_of(message)) for role, message in answer_messages]


def as_text(sections: Sequence[Section]) -> str:
    """The sections as plain text, for a prompt of the user's own."""
    return "\n\n".join(f"{who}: {text}" for who, text in sections)


def framed(sections: Sequence[Section], *, beside: Sequence[str] = ()) -> tuple[str, str]:
    """(the material between its markers, the marker). `beside`: what else is shown, and must not hold the marker either."""
    marker = digest([*(list(section) for section in sections), *beside])[:MARKER_CHARS]
    blocks = [f"--- {marker}: {who}\n{text}" for who, text in sections]
    return "\n".join([*blocks, f"--- {marker}: end"]), marker
