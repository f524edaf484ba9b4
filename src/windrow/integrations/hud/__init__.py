"""HUD: its task rows, an environment that plays them, and an export in the form of its records.

`rows` recognises a row of any of its three formats, `tasks` reads one of the first (the only one that can be played), `env`
plays it against its MCP servers (`servers`), `rewards` finds the reward in what they answer, and `export` writes rollouts.
The MCP client itself belongs in `tools`.

The rows and the tool contract are tested against the package `hud-python` (tests/interop/test_hud.py).
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
