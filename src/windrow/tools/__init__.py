"""Tools: what a policy may call during an episode.

Here are the interface (`Tool`, `ToolResult`), Python functions and MCP servers as tools, and the toolbox that gathers a
run's tools and filters them. Running the calls of a reply, with limits and recording, is in `engine/tool_calls.py`;
reading calls out of a reply's text is in `policies/toolcalls/`.
"""

from __future__ import annotations

from windrow.tools.base import Tool, ToolResult, ToolStop
from windrow.tools.functions import tool

__all__ = ["Tool", "ToolResult", "ToolStop", "tool"]
