"""tinker-cookbook: its rubric rows, and its rollout summaries and training datums, written from rollouts.

`rubrics` reads the criteria of a row, `summaries` makes one line per trajectory, `traces` the prompt, reply and rewards
of a step, `datums` the training data.
"""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="tinker",
    exporters={"tinker": "windrow.integrations.tinker.export:Tinker"},
    rubrics={"rubric_items": "windrow.integrations.tinker.rubrics:read_rubric"},
    conversation_fields=("convo",),
)
