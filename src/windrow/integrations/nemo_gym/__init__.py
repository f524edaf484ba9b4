"""NeMo Gym, from its documentation: its rows, files and agent servers.

`rows` reads a row, `items` the output of a response, `results` the whole result of an agent; each both ways.
"""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="nemo-gym",
    envs={"nemo-gym": "windrow.integrations.nemo_gym.env:NemoGym"},
    agents={"nemo-gym": "windrow.integrations.nemo_gym.agent:NemoGymAgent"},
    scorers={"nemo-gym": "windrow.integrations.nemo_gym.scorer:Verified"},
    exporters={"nemo-gym": "windrow.integrations.nemo_gym.export:NemoGym"},
    importers={"nemo-gym": "windrow.integrations.nemo_gym.importer:open_files"},
    aggregates={"nemo-gym": "windrow.integrations.nemo_gym.aggregate:aggregate"},
    row_formats={
        "responses_create_params": "windrow.integrations.nemo_gym.rows:ROW_FORMAT",
        "agent_ref": "windrow.integrations.nemo_gym.rows:ROW_FORMAT",
    },
    agent_addresses={"nemo-gym": "windrow.integrations.nemo_gym.addresses:agent_settings"},
    scorer_addresses={"nemo-gym": "windrow.integrations.nemo_gym.addresses:scorer_settings"},
    agent_envs={"nemo-gym": "nemo-gym"},
)
