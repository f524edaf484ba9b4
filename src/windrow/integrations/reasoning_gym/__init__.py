"""reasoning-gym: its procedural data sets as tasks, judged by their own verifiers in a process of their own."""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="reasoning-gym",
    envs={"reasoning-gym": "windrow.integrations.reasoning_gym.tasks:ReasoningGym"},
    scorers={"reasoning-gym": "windrow.integrations.reasoning_gym.tasks:Verifier"},
    loaders={"reasoning-gym": "windrow.integrations.reasoning_gym.tasks:open_tasks"},
    extras={"reasoning-gym": ("reasoning-gym",)},
)
