"""NeMo Gym: its rows and files, and its running agent and verifier servers, written from its documentation.

- Formats, each read and written: `rows` (a task), `items` (the output of a response), `results` (the result of an agent),
  `files` and `rollout_lines` (its files and their lines), `usage`, `json_differences`.
- Servers: `client` sends requests and `addresses` reads where to. `agent` has the servers play (`outages` waits for them, `episodes` judges what they
  answer, `env` opens the episode), `scorer` has them verify (`verify_request`), `aggregate` has them compute metrics.
- Settings: `configs` reads its YAML configurations.
- Whole runs: `importer` makes a run of its files, `export` its files of a run, with its `reward_profiles`.

The Responses dialect of model servers is not here but in `policies/dialects`.
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
    config_formats={"nemo-gym": "windrow.integrations.nemo_gym.configs:read_config"},
)
