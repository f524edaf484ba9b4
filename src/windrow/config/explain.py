"""A complaint about a configuration in our words: the key, where it was set, and the nearest right name."""

from __future__ import annotations

import re
from typing import Any, get_args

import msgspec

from windrow.config.sections import (
    AgentConfig,
    BlocklistConfig,
    BudgetConfig,
    CallConfig,
    DatasetConfig,
    DrawConfig,
    EnvConfig,
    LimitsConfig,
    LocalConfig,
    McpConfig,
    PolicyConfig,
    Price,
    RangeConfig,
    Sampling,
    ScorerConfig,
    ServiceConfig,
    TasksConfig,
    ToolConfig,
    TrustConfig,
)
from windrow.util.spelling import nearest


def explain(problem: str, tree: dict[str, Any], origins: dict[str, str]) -> str:
    """msgspec's complaint in our words, with the place the value came from."""
    match = re.fullmatch(r"(.*?)(?: - at (`key` in )?`\$\.?(.*)`)?", problem, re.S)
    assert match is not None
    text, in_key, section = match.group(1), match.group(2), (match.group(3) or "").replace("[...]", "")
    spelled = _with_service(section, tree)
    if in_key:
        text = "keys must be text; put quotes around them"
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", text)
    if unknown:
        key = f"{spelled}.{unknown.group(1)}" if section else unknown.group(1)
        names = [field.encode_name for field in msgspec.structs.fields(_section_type(section))]
        where = origin_of(key, origins)
        return f"{where}unknown key {key!r}{nearest(unknown.group(1), names)} (known: {', '.join(names)})"
    if text.startswith("Invalid enum value"):
        text += f" (known: {', '.join(_choices(section))})"
    return f"{origin_of(spelled, origins)}{spelled or 'configuration'}: {text[:1].lower()}{text[1:]}"


def _with_service(section: str, tree: dict[str, Any]) -> str:
    """The place with the name of the service in it, which msgspec does not say: the first that is wrong."""
    services = tree.get("services")
    if section.startswith("services") and isinstance(services, dict):
        for name, service in services.items():
            try:
                msgspec.convert(service, ServiceConfig)
            except msgspec.ValidationError:
                return f"services.{name}{section.removeprefix('services')}"
    return section


def _section_type(section: str) -> type[msgspec.Struct]:
    """The struct that stands at a dotted place of the configuration."""
    types: dict[str, type[msgspec.Struct]] = {
        "": CallConfig,
        "tasks": TasksConfig,
        "policy": PolicyConfig,
        "policy.sampling": Sampling,
        "policy.local": LocalConfig,
        "env": EnvConfig,
        "agent": AgentConfig,
        "limits": LimitsConfig,
        "budget": BudgetConfig,
        "draw": DrawConfig,
        "draw.ratio": RangeConfig,
        "blocklist": BlocklistConfig,
        "prices": Price,
        "services": ServiceConfig,
        "datasets": DatasetConfig,
        "tools": ToolConfig,
        "tools.mcp": McpConfig,
        "trust": TrustConfig,
    }
    return types.get(re.sub(r"\[\d+\]", "", section), ScorerConfig)


def _choices(key: str) -> tuple[str, ...]:
    """The values that a key of a few fixed ones may have."""
    section, _, name = key.rpartition(".")
    fields = {field.encode_name: field for field in msgspec.structs.fields(_section_type(section))}
    kinds = (fields[name].type, *get_args(fields[name].type))  # some take a number or a word
    return tuple(value for kind in kinds for value in get_args(kind) if isinstance(value, str))


def origin_of(key: str, origins: dict[str, str]) -> str:
    """Where `key`, something in it, or the nearest thing around it was set, as a prefix for a message."""
    inside = [origin for place, origin in origins.items() if place.startswith((f"{key}.", f"{key}["))]
    if key not in origins and inside:
        return f"{inside[-1]}: "
    while key:
        if key in origins:
            return f"{origins[key]}: "
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return ""
