"""What a policy may call."""

from __future__ import annotations

from windrow.tools.base import Tool, ToolResult

__all__ = ["Tool", "ToolResult"]
