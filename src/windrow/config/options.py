"""The options that are flags of the command and keywords of the library, and their short spellings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from windrow.errors import UsageError
from windrow.registry import declared, load

# Every option that is a flag of the command and a keyword of the library, and the place it sets.
OPTIONS: dict[str, str] = {
    "tasks": "tasks.path",
    "source": "tasks.source",
    "split": "tasks.split",
    "reuse_prepared": "reuse_prepared",
    "limit": "tasks.limit",
    "shuffle": "tasks.shuffle",
    "skip_invalid": "tasks.skip_invalid",
    "trust_rows": "trust.rows",
    "draw": "draw.how",
    "draw_n": "draw.n",
    "draw_seed": "draw.seed",
    "blocklist": "blocklist.path",
    "blocklist_hours": "blocklist.hours",
    "blocklist_at": "blocklist.at",
    "map": "tasks.map",
    "model": "policy.model",
    "base_url": "policy.base_url",
    "api_key_env": "policy.api_key_env",
    "temperature": "policy.sampling.temperature",
    "top_p": "policy.sampling.top_p",
    "max_tokens": "policy.sampling.max_tokens",
    "call_retries": "policy.call_retries",
    "requests_per_minute": "policy.requests_per_minute",
    "tokens_per_minute": "policy.tokens_per_minute",
    "max_outage": "policy.max_outage_s",
    "dialect": "policy.dialect",
    "tool_calls": "policy.tool_calls",
    "env": "env",
    "agent": "agent",
    "prompt": "prompt",
    "scorers": "scorers",
    "judge": "judge.model",
    "judge_base_url": "judge.base_url",
    "judge_api_key_env": "judge.api_key_env",
    "judge_concurrency": "judge_concurrency",
    "tools": "tools",
    "allow_tools": "allow_tools",
    "deny_tools": "deny_tools",
    "samples": "samples",
    "pass_": "pass",
    "seeds": "seeds",
    "capture": "capture",
    "top_logprobs": "top_logprobs",
    "max_turns": "limits.max_turns",
    "max_episode_tokens": "limits.max_episode_tokens",
    "max_tool_calls": "limits.max_tool_calls",
    "call_timeout": "limits.call_timeout_s",
    "tool_timeout": "limits.tool_timeout_s",
    "score_timeout": "limits.score_timeout_s",
    "episode_timeout": "limits.episode_timeout_s",
    "concurrency": "concurrency",
    "env_concurrency": "env_concurrency",
    "agent_concurrency": "agent_concurrency",
    "workers": "workers",
    "rank": "rank",
    "world_size": "world_size",
    "rank_weights": "rank_weights",
    "serve": "serve",
    "retries": "retries",
    "min_group": "min_group",
    "max_failure_rate": "max_failure_rate",
    "budget_tokens": "budget.tokens",
    "budget_cost": "budget.cost",
    "budget_seconds": "budget.seconds",
    "track": "track",
    "upload_rollouts": "upload_rollouts",
    "out": "out",
    "lock": "lock",
    "shared": "shared",
}

_LISTS = ("scorers", "tools", "allow_tools", "deny_tools")  # a flag adds one of them, and is spelled so


def flag(option: str) -> str:
    """An option as the command spells it."""
    return "--" + (option[:-1] if option in _LISTS else option.rstrip("_")).replace("_", "-")


def parse_scorer(text: str) -> dict[str, Any]:
    """`NAME` or `NAME=WEIGHT`, as the flag has it; `NAME:ADDRESS` where the scorer of an integration takes one."""
    name, equals, weight = text.rpartition("=")
    scorer = _addressed("scorer", name if equals else text)
    try:
        return {**scorer, "weight": float(weight)} if equals else scorer
    except ValueError:
        raise UsageError(f"--scorer {text!r}: the weight after '=' must be a number") from None


def parse_agent(text: str) -> dict[str, Any]:
    """`NAME`, as the flag has it; `NAME:ADDRESS` where the agent of an integration takes one."""
    return _addressed("agent", text)


def _addressed(kind: str, text: str) -> dict[str, Any]:
    """The name in `text`, with the settings that an address after it means."""
    name, _, address = text.partition(":")
    if not address or name not in declared(f"{kind}_addresses"):
        return {"name": text}
    return {"name": name, "settings": load(kind, declared(f"{kind}_addresses")[name])(address)}


def parse_tool(text: str) -> dict[str, Any]:
    """`module:function`, as the flag has it."""
    return {"function": text}


def parse_mcp(text: str) -> dict[str, Any]:
    """`COMMAND` or `URL`, as the flag has it."""
    if re.match(r"https?://", text):
        return {"mcp": {"url": text}}
    try:
        return {"mcp": {"command": shlex.split(text)}}
    except ValueError as problem:
        raise UsageError(f"--mcp {text!r}: not a command: {problem}") from None


def parse_maps(texts: Sequence[str]) -> dict[str, str]:
    """`FIELD=SOURCE[|filter…]`, as the flag has it."""
    maps: dict[str, str] = {}
    for text in texts:
        field, equals, source = str(text).partition("=")
        if not equals or not field.strip():
            raise UsageError(f"--map {text!r}: expected FIELD=SOURCE, such as --map prompt=question")
        if field.strip() in maps:
            raise UsageError(f"--map {text!r}: {field.strip()!r} is mapped twice")
        maps[field.strip()] = source
    return maps


def parse_shares(key: str, texts: Sequence[str]) -> dict[str, Any]:
    """`NAME=N`, as the flag has it."""
    shares: dict[str, Any] = {}
    for text in texts:
        name, equals, number = str(text).rpartition("=")
        if not equals or not name or not number.isdecimal():
            raise UsageError(f"{flag(key)} {text!r}: expected NAME=N, such as {flag(key)} chat=8")
        shares[name] = int(number)
    return shares


def parse_weights(text: str) -> list[float]:
    """`2,1,1`, as the flag has it."""
    try:
        return [float(weight) for weight in text.split(",")]
    except ValueError:
        raise UsageError(f"--rank-weights {text!r}: expected a number for each rank, such as 2,1,1") from None


def shaped(key: str, value: Any) -> Any:
    """The short spellings: a name for an env, a path for the tasks, lists of texts for the scorers and the map.

    A list of one URL is that URL.
    """
    if key in ("policy.base_url", "judge.base_url") and isinstance(value, list | tuple) and len(value) == 1:
        return value[0]
    if key == "rank_weights" and isinstance(value, str):
        return parse_weights(value)
    if key == "track" and isinstance(value, str):
        return [value]
    if key == "env" and isinstance(value, str):
        return _addressed("env", value)
    if key == "agent" and isinstance(value, str):
        return parse_agent(value)
    if key == "tasks" and isinstance(value, str):
        return {"path": value}
    if key == "scorers" and isinstance(value, list | tuple):
        return [parse_scorer(item) if isinstance(item, str) else item for item in value]
    if key == "tools" and isinstance(value, list | tuple):
        return [parse_tool(item) if isinstance(item, str) else item for item in value]
    if key == "tasks.map" and isinstance(value, list | tuple):
        return parse_maps(value)
    if key in ("env_concurrency", "agent_concurrency") and isinstance(value, list | tuple):
        return parse_shares(key, value)
    return value
