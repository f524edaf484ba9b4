"""TRL: rollouts as rows for its trainers, with exact tokens."""

from __future__ import annotations

from windrow.registry import Integration

INTEGRATION = Integration(
    name="trl",
    exporters={"trl": "windrow.integrations.trl.export:Trl"},
)
