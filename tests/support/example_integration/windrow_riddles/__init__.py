"""Riddles for Windrow. This module only declares what there is; nothing else is imported before it is named."""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="riddles",
    envs={"riddles": "windrow_riddles.env:Riddles"},
    scorers={"riddles": "windrow_riddles.scorer:solved"},
    exporters={"riddles": "windrow_riddles.export:Solutions"},
    row_formats={"riddle": "windrow_riddles.rows:ROW_FORMAT"},
)
