"""Gymnasium: its environments with numbered actions, played as conversations.

Here belong the environment (`env`) and the words for its states and actions (`descriptions`). Other text games do not: a
game of several seats is in `integrations/textarena`, and the general interface is in `envs`.
"""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="gymnasium",
    envs={"gymnasium": "windrow.integrations.gymnasium.env:Gymnasium"},
    loaders={"gymnasium": "windrow.integrations.gymnasium.env:open_tasks"},
    extras={"gymnasium": ("gymnasium",)},
)
