"""What a policy may call."""

from __future__ import annotations

from windrow.tools.base import Tool, ToolResult, ToolStop
from windrow.tools.functions import tool

__all__ = ["Tool", "ToolResult", "ToolStop", "tool"]
