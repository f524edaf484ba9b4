"""TextArena: its games as matches of several seats."""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="textarena",
    envs={"textarena": "windrow.integrations.textarena.env:TextArena"},
    loaders={"textarena": "windrow.integrations.textarena.env:open_tasks"},
    extras={"textarena": ("textarena",)},
)
