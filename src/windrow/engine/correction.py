"""What the model is told when it wrote tool calls that nobody can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def correction(malformed: Sequence[str], *, alone: bool) -> dict[str, Any]:
    """The message after a reply with malformed calls; `alone`: no call beside them could be run."""
    which = "No tool was called" if alone else "These calls were not run"
    listed = "\n".join(f"- {what}" for what in malformed)
    return {
        "role": "user",
        "content": f"{which}, because your last reply could not be read as written:\n{listed}\n"
        "Write the call again in the right form, or answer without a call.",
    }
