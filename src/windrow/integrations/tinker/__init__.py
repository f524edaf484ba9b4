"""tinker-cookbook: its rubric rows, its environments, and its rollout summaries and training datums, written from rollouts.

`rubrics` reads the criteria of a row. `env` plays a group builder, which `builders` finds and `renderer` lets speak in messages. `export` writes a run: `summaries` makes one line per trajectory, with `traces` for the
prompt, reply and rewards of a step; `export_datums` and `datums` make the training data. How turns become training
sequences belongs in `exports/tokens`, and the scorer that asks a judge about criteria is `grading/rubric.py`.
"""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="tinker",
    envs={"tinker": "windrow.integrations.tinker.env:TinkerEnv"},
    loaders={"tinker": "windrow.integrations.tinker.builders:open_tasks"},
    exporters={"tinker": "windrow.integrations.tinker.export:Tinker"},
    rubrics={"rubric_items": "windrow.integrations.tinker.rubrics:read_rubric"},
    conversation_fields=("convo",),
)
