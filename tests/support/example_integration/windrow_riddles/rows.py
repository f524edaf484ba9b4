"""A row: {"riddle": "What has keys but opens no door?", "solution": "a piano"}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windrow.tasks.row_formats import RowFormat


def is_row(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("riddle"), str) and "solution" in row


def opening_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not row["riddle"].strip():
        raise ValueError("'riddle' is empty")
    return [{"role": "user", "content": row["riddle"]}]


ROW_FORMAT = RowFormat(is_row=is_row, opening_of=opening_of, env_of=lambda row: "riddles")
