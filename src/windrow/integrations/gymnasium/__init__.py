"""Gymnasium: its worlds with numbered actions as conversations."""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="gymnasium",
    envs={"gymnasium": "windrow.integrations.gymnasium.env:Gymnasium"},
    loaders={"gymnasium": "windrow.integrations.gymnasium.env:open_tasks"},
    extras={"gymnasium": ("gymnasium",)},
)
