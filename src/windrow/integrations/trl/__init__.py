"""TRL: rollouts as rows of token ids, masks and logprobs for its trainers, and its environment classes.

Here belongs the layout of those rows (`export`), and playing the classes that its trainers take (`env`). How turns become training sequences belongs in `exports/tokens`; reward
functions with the signature that its trainers call are run by `grading/reward_functions.py`.
"""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="trl",
    envs={"trl-env": "windrow.integrations.trl.env:TrlEnv"},
    env_addresses={"trl-env": "windrow.integrations.trl.env:env_settings"},
    exporters={"trl": "windrow.integrations.trl.export:Trl"},
)
