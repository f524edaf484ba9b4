"""Other systems: one folder for each, with its rows, environments, agents, scorers, reports, imports and exports.

The `__init__` of a folder declares its parts by name in `INTEGRATION` and imports none of them: the registry imports
a part when a path, a row or an option names it. No module outside this room imports it or names such a system. Code
that several systems need belongs in the room of its subject.
"""

from __future__ import annotations

from windrow.integrations import (
    gymnasium,
    hud,
    miniwob,
    nemo_gym,
    reasoning_gym,
    textarena,
    tinker,
    trl,
    webgym,
)

# In the order in which a row is compared with their formats.
BUNDLED = (
    nemo_gym.INTEGRATION,
    webgym.INTEGRATION,
    hud.INTEGRATION,
    reasoning_gym.INTEGRATION,
    gymnasium.INTEGRATION,
    textarena.INTEGRATION,
    miniwob.INTEGRATION,
    tinker.INTEGRATION,
    trl.INTEGRATION,
)
