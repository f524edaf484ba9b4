"""The message that tells a model that its tool calls could not be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windrow.records import Message

_WHY = ", because your last reply could not be read as written:\n"
_ALONE, _BESIDE = "No tool was called", "These calls were not run"
_AGAIN = "Write the call again in the right form, or answer without a call."


def correction(malformed: Sequence[str], *, alone: bool) -> dict[str, Any]:
    """The message after a reply with malformed calls. With `alone`, the reply had no other calls."""
    listed = "\n".join(f"- {problem}" for problem in malformed)
    return {
        "role": "user",
        "content": f"{_ALONE if alone else _BESIDE}{_WHY}{listed}\n{_AGAIN}",
    }


def malformed_of(message: Message) -> tuple[str, ...]:
    """The malformed calls that a correction lists; none for any other message."""
    head, why, rest = message.text.partition(_WHY)
    if message.origin != "env" or not why or head not in (_ALONE, _BESIDE):
        return ()
    return tuple(rest.removesuffix(f"\n{_AGAIN}").removeprefix("- ").split("\n- "))
