"""One typed run configuration: YAML files first, then flags and `--set a.b=c`, each value with where it came from.

Nothing is ignored: an unknown key, a wrong type or a value out of range is an error that names the key, the file and
line (or the flag), and the nearest right name. `${VAR}` stands for an environment variable, `${service.NAME.url}` for
where a service runs; both are expanded when the value is used and never written to a file.

This room holds options, their types and their loading. Objects that a configuration names (policies, environments,
scorers) are made in their own rooms.
"""

from __future__ import annotations

from windrow.config.load import LoadedConfig, load_config
from windrow.config.options import OPTIONS, parse_maps, parse_mcp, parse_scorer, parse_tool
from windrow.config.sections import (
    AgentConfig,
    BlocklistConfig,
    BudgetConfig,
    DatasetConfig,
    DialectName,
    DrawConfig,
    EnvConfig,
    LimitsConfig,
    LocalConfig,
    McpConfig,
    PolicyConfig,
    Price,
    RangeConfig,
    RunConfig,
    Sampling,
    ScorerConfig,
    ServiceConfig,
    TasksConfig,
    ToolConfig,
    TrustConfig,
    as_tree,
)
from windrow.config.variables import expand, services_at, services_in, variables_in
from windrow.util.spelling import nearest

__all__ = [
    "RunConfig",
    "TasksConfig",
    "PolicyConfig",
    "DialectName",
    "Sampling",
    "LocalConfig",
    "EnvConfig",
    "AgentConfig",
    "ScorerConfig",
    "ServiceConfig",
    "McpConfig",
    "ToolConfig",
    "TrustConfig",
    "LimitsConfig",
    "BudgetConfig",
    "DatasetConfig",
    "DrawConfig",
    "RangeConfig",
    "BlocklistConfig",
    "Price",
    "LoadedConfig",
    "OPTIONS",
    "load_config",
    "as_tree",
    "expand",
    "services_at",
    "services_in",
    "variables_in",
    "nearest",
    "parse_scorer",
    "parse_tool",
    "parse_mcp",
    "parse_maps",
]
