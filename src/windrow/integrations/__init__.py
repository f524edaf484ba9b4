"""Other systems: one folder for each, with its rows, environments, agents, scorers, reports, imports and exports.

A folder's `__init__` declares in `INTEGRATION` what there is, by name, and imports none of it: the registry does so when a
path, a row or an option names it. Nothing outside this room imports it or names such a system. What several systems need is
in the room that it is about; `addresses`, which reads task paths such as `PACKAGE:NAME?size=50`, is the only shared module.
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
