"""MiniWoB++: its pages as tasks for the environment `web`, with the rewards that the pages give."""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="miniwob",
    loaders={"miniwob": "windrow.integrations.miniwob.tasks:open_tasks"},
    page_rewards={"miniwob": "windrow.integrations.miniwob.tasks:MiniWoB"},
)
