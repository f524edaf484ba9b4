"""HUD: its task rows of three generations, an environment that plays the first of them, and rollouts in the form of its records.

The rows and the tool contract are held against the package `hud-python` where that installs (tests/interop/test_hud.py).
"""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="hud",
    envs={"hud": "windrow.integrations.hud.env:Hud"},
    exporters={"hud": "windrow.integrations.hud.export:Hud"},
    row_formats={
        "mcp_config": "windrow.integrations.hud.rows:ROW_FORMAT",
        "env": "windrow.integrations.hud.rows:ROW_FORMAT",
    },
)
