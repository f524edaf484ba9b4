"""WebGym, from its documentation and formats: its task rows, its metrics, its trajectory files.

`rows` reads a row, `steps` makes a rollout into its steps, `metrics` counts over them, `trajectories` writes them.
"""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="webgym",
    scorers={"webgym": "windrow.integrations.webgym.scorer:WebGymJudge"},
    exporters={"webgym": "windrow.integrations.webgym.export:WebGym"},
    reports={"webgym": "windrow.integrations.webgym.report:report"},
    row_formats={"task_name": "windrow.integrations.webgym.rows:ROW_FORMAT"},
)
