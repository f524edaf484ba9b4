"""Rows of HUD, and its servers as the tests' own (tests/support/hud_server.py)."""

from __future__ import annotations

import sys
from typing import Any

from tests.support.mcp_over_http import ROOT

STDIO = {"command": sys.executable, "args": ["-m", "tests.support.hud_server"], "cwd": str(ROOT)}
V5 = {
    "env": {"name": "browser", "include": ["navigate"]},
    "scenario": "checkout",
    "args": {"user": "alice"},
    "slug": "checkout-alice",
    "validation": [{"name": "check_cart", "arguments": {}}],
    "agent_config": {"system_prompt": "Be brief."},
    "metadata": {"level": 1},
}
V6 = {
    "env": "browser",
    "id": "checkout",
    "args": {"user": "alice", "n": 2},
    "columns": {"level": "easy"},
    "runtime_config": {"image": "browser:1", "limits": {"run_timeout_s": 60}},
    "verifier": {"env": "browser", "id": "check", "args": {}},
}


def v4(how: str | None = "log", server: Any = None, **fields: Any) -> dict[str, Any]:
    """A task in the tests' world, judged as `how` says."""
    row = {"prompt": "Go on.", "mcp_config": {"world": server or STDIO}}
    if how is not None:
        row["evaluate_tool"] = {"name": "evaluate", "arguments": {"how": how}}
    return {**row, **fields}
