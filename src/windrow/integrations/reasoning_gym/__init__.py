"""reasoning-gym: its procedural data sets as tasks, and its own verifiers as the scorer.

`tasks` has the loader, the environment and the scorer. `worker` is the program that runs the package itself, in a process
of its own. Running code that may never end, for any scorer, belongs in `grading/verdict_processes.py`.
"""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="reasoning-gym",
    envs={"reasoning-gym": "windrow.integrations.reasoning_gym.tasks:ReasoningGym"},
    scorers={"reasoning-gym": "windrow.integrations.reasoning_gym.tasks:Verifier"},
    loaders={"reasoning-gym": "windrow.integrations.reasoning_gym.tasks:open_tasks"},
    extras={"reasoning-gym": ("reasoning-gym",)},
)
