"""The text of a rollout that a judge is shown: the messages without reasoning, framed so that they cannot pose as the
question.

The material stands between lines that begin with a marker, which is made from the material itself: no text can
contain its own marker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from windrow.identity import digest
from windrow.records import Message, part_text
from windrow.util.blobs import is_blob

Shows = Literal["transcript", "reply"]
Section = tuple[str, str]  # who speaks, and what is said

MARKER_CHARS = 12
_HIDDEN_PARTS = ("thinking", "redacted_thinking", "reasoning")
_THINKING = re.compile(r"\A\s*<think>.*?(?:</think>\s*|\Z)", re.S)


def without_thinking(text: str) -> str:
    """Return the text after a leading <think> block; nothing if the block was cut off."""
    return _THINKING.sub("", text, count=1)


def text_of(message: Message) -> str:
    """Return the text of a message, its calls, and one word per image, without reasoning."""
    if message.content is None or isinstance(message.content, str):
        text = message.content or ""
    else:
        text = "".join(
            part_text(part)
            if part.get("text") is not None or part.get("type") == "text"
            else f"({'image' if is_blob(part) else part.get('type', 'part')})"
            for part in message.content
            if part.get("type") not in _HIDDEN_PARTS
        )
    if message.origin == "policy":
        text = without_thinking(text)
    calls = [f"(calls {call.name} with {call.arguments})" for call in message.tool_calls or ()]
    return "\n".join([text, *calls] if text or not calls else calls)


def reply_of(messages: Sequence[Message]) -> str:
    """Return the policy's last reply."""
    return next((text_of(message) for message in reversed(messages) if message.origin == "policy"), "")


def opening_of(messages: Sequence[Message]) -> list[Section]:
    """Return the messages before the policy's first reply."""
    first = next((n for n, message in enumerate(messages) if message.origin == "policy"), len(messages))
    return [(message.role, text_of(message)) for message in messages[:first]]


def answer_of(messages: Sequence[Message], shows: Shows, *, called: str) -> list[Section]:
    """Return the policy's replies with their results: everything from its first reply on, or its last reply alone."""
    opening = len(opening_of(messages))
    answer_messages = [(message.role, message) for message in messages[opening:]]
    if shows == "reply" or len(answer_messages) < 2:
        return [(called, reply_of(messages))]
    return [(f"{called}, {role}", text_of(message)) for role, message in answer_messages]


def as_text(sections: Sequence[Section]) -> str:
    """Return the sections as plain text, for a user's own prompt."""
    return "\n\n".join(f"{who}: {text}" for who, text in sections)


def framed(sections: Sequence[Section], *, beside: Sequence[str] = ()) -> tuple[str, str]:
    """Return the material between its markers, and the marker. `beside` is other text in the prompt, which must not
    contain the marker either.
    """
    marker = digest([*(list(section) for section in sections), *beside])[:MARKER_CHARS]
    blocks = [f"--- {marker}: {who}\n{text}" for who, text in sections]
    return "\n".join([*blocks, f"--- {marker}: end"]), marker
