"""TextArena: its games, played as matches of several seats.

Here belongs the environment that runs one of its games (`env`). How a match is played and recorded, for any game, belongs in
`engine/match.py`; the interface `Match` is in `envs`.
"""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="textarena",
    envs={"textarena": "windrow.integrations.textarena.env:TextArena"},
    loaders={"textarena": "windrow.integrations.textarena.env:open_tasks"},
    extras={"textarena": ("textarena",)},
)
