"""WebGym: its task rows, its judge, its metrics and its trajectory files, written from its documentation.

`rows` reads a row and `scorer` is its judge. `steps` turns a rollout into its steps; `metrics` and `report` compute its
numbers from them, `trajectories` and `export` write them, and `iterations` names the files. The browser belongs in
`envs/web`, and Windrow's own statistics in `stats`.
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
