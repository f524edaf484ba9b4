"""TRL: rollouts as rows of token ids, masks and logprobs for its trainers.

Here belongs the layout of those rows (`export`). How turns become training sequences belongs in `exports/tokens`; reward
functions with the signature that its trainers call are run by `grading/reward_functions.py`.
"""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="trl",
    exporters={"trl": "windrow.integrations.trl.export:Trl"},
)
