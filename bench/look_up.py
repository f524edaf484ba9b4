"""A tool that costs nothing, for episodes of many turns: it answers in this process, at once."""

from __future__ import annotations


async def look_up(place: int = 0) -> str:
    """Look up a number.

    Args:
        place: where it stands
    """
    return f"The number at place {place} is 42."
