"""MiniWoB++: its pages as tasks for the environment `web`, with the reward that each page gives.

Here belong the list of its tasks and the reading of its rewards (`tasks`). The browser, its actions and its observations
belong in `envs/web`.
"""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="miniwob",
    loaders={"miniwob": "windrow.integrations.miniwob.tasks:open_tasks"},
    page_rewards={"miniwob": "windrow.integrations.miniwob.tasks:MiniWoB"},
)
