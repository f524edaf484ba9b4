"""What the model is told when it wrote tool calls that nobody can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windrow.records import Message

_WHY = ", because your last reply could not be read as written:\n"
_ALONE, _BESIDE = "No tool was called", "These calls were not run"
_AGAIN = "Write the call again in the right form, or answer without a call."


def correction(malformed: Sequence[str], *, alone: bool) -> dict[str, Any]:
    """The message after a reply with malformed calls; `alone`: no call beside them could be run."""
    listed = "\n".join(f"- {what}" for what in malformed)
    return {
        "role": "user",
        "content": f"{_ALONE if alone else _BESIDE}{_WHY}{listed}\n{_AGAIN}",
    }


def malformed_of(message: Message) -> tuple[str, ...]:
    """What a correction lists; nothing of any other message."""
    head, why, rest = message.text.partition(_WHY)
    if message.origin != "env" or not why or head not in (_ALONE, _BESIDE):
        return ()
    return tuple(rest.removesuffix(f"\n{_AGAIN}").removeprefix("- ").split("\n- "))
