"""A row of HUD, in any of its three generations: how it is told from other rows, what it is called, what is wrong with it.

    v4   {"prompt": …, "mcp_config": {NAME: …}, "setup_tool"?: …, "evaluate_tool"?: …, "agent_config"?: …}
    v5   {"env": {"name": …}, "scenario": …, "args": {…}, "slug"?: …}
    v6   {"env": NAME, "id": TEMPLATE, "args": {…}, "slug"?: …}

A row is kept as it was read. Of the first generation everything that an episode needs stands in the row, so that the environment
`hud` plays it. It also plays a row of the second one that was given an `mcp_config`, the server of its environment. Others
only name what runs on HUD's platform or in its own processes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from windrow.config import nearest
from windrow.envs import find_env
from windrow.errors import UsageError
from windrow.integrations.hud.tasks import HudTask, read_scenario, read_task
from windrow.records import Json
from windrow.tasks.row_formats import Marks, RowFormat

Generation = Literal["v4", "v5", "v6"]
NAME = "hud"

_V5 = (
    "env",
    "scenario",
    "args",
    "mcp_config",
    "slug",
    "id",
    "validation",
    "agent_config",
    "columns",
    "metadata",
)
_V6 = (
    "env",
    "id",
    "args",
    "slug",
    "validation",
    "agent_config",
    "columns",
    "runtime_config",
    "verifier",
)
_RUNTIME = ("image", "compose", "resources", "limits")
_ENV = ("name", "include", "exclude")
_OURS = ("agent", "tags", "sampling")  # what any row of ours may have beside its content


def generation_of(row: Mapping[str, Json]) -> Generation | None:
    """Which generation a row is of; None: it is not HUD's. A row may be of one and still be wrong."""
    env = row.get("env")
    if row.get("mcp_config") is not None:
        return "v5" if isinstance(env, dict) and "scenario" in row else "v4"
    if isinstance(env, dict):
        return "v5"
    named = isinstance(env, str) and isinstance(row.get("id"), str) and "args" in row
    if named and "prompt" not in row and "messages" not in row and not _is_ours(str(env)):
        return "v6"
    return None


@lru_cache(maxsize=256)
def _is_ours(env: str) -> bool:
    """Whether a name is that of an environment of ours, which may be plugged in; HUD's names have no colon."""
    if ":" in env:
        return True
    try:
        find_env(env)
    except UsageError:
        return False
    return True


def is_row(row: Mapping[str, Json]) -> bool:
    return generation_of(row) is not None


def split_row(row: Mapping[str, Json]) -> tuple[dict[str, Json], Marks]:
    """The row as it is. ValueError says what is wrong with it, for HUD itself, too."""
    checks = {"v4": read_task, "v5": _check_v5, "v6": _check_v6}
    generation = generation_of(row)
    assert generation is not None
    checks[generation](row)
    return dict(row), Marks()


def owns_env(row: Mapping[str, Json]) -> bool:
    """An `env` beside an `mcp_config` is ours; that of later generations is theirs."""
    return generation_of(row) != "v4"


def key_of(row: Mapping[str, Json]) -> str | None:
    """The `id` of the first generation; later the slug, which the last one has also where it is not written."""
    generation = generation_of(row)
    slug, row_id = row.get("slug"), row.get("id")
    if generation == "v4" or (generation == "v5" and slug is None):
        return None if row_id is None else str(row_id)
    return default_slug(str(row_id), row.get("args") or {}) if slug is None else str(slug)


def default_slug(template: str, args: Mapping[str, Json]) -> str:
    """The slug of a task that has none: its template and, where there are arguments, eight digits of their hash."""
    if not args:
        return template
    text = json.dumps(args, sort_keys=True)
    return f"{template}-{hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]}"


def playable(row: Mapping[str, Json]) -> HudTask | None:
    """The task in a row that names its MCP servers; None for one that does not. ValueError describes a bad one."""
    generation = generation_of(row)
    if generation == "v4":
        return read_task(row)
    return read_scenario(row) if generation == "v5" and row.get("mcp_config") is not None else None


def opening_of(row: Mapping[str, Json]) -> list[dict[str, Any]]:
    raise ValueError(not_played(row))


def not_played(row: Mapping[str, Json]) -> str:
    """Why a row of a later generation cannot be played here, and what can be done."""
    generation, env = generation_of(row), row.get("env")
    name = env.get("name") if isinstance(env, dict) else env
    server = "an 'mcp_config' in the row, the server of that environment; or " if generation == "v5" else ""
    what = f"scenario {row.get('scenario')!r}" if generation == "v5" else f"template {row.get('id')!r}"
    return (
        f"a HUD {generation} row names the {what} of the environment {name!r}, which has its prompt, tools and grading: only HUD can run "
        f"that. Give {server}--env module:Class, an environment of yours that plays it from `args`, or a v4 row (prompt, mcp_config)"
    )


def _check_v5(row: Mapping[str, Json]) -> None:
    _only(row, (*_V5, *_OURS), "a HUD v5 row")
    env = row["env"]
    _only(env, _ENV, "'env'")
    if not isinstance(env.get("name"), str) or not env["name"]:
        raise ValueError("'env' must have a 'name', a text")
    for field in ("include", "exclude"):
        _texts(env.get(field), f"env.{field}")
    _expect(row.get("scenario"), str, "'scenario' must be a text")
    _check_shared(row)
    _expect(row.get("metadata"), dict, "'metadata' must be an object")
    _expect(row.get("id"), str, "'id' must be a text")
    if row.get("args") is None:
        raise ValueError("'args' is null: the row is a template, and its arguments are still to be filled in")
    if row.get("mcp_config") is not None:
        read_scenario(row)


def _check_v6(row: Mapping[str, Json], *, verifies: bool = False) -> None:
    what = "'verifier'" if verifies else "a HUD v6 row"
    _only(row, _V6 if verifies else (*_V6, *_OURS), what)
    for field in ("env", "id"):
        if not isinstance(row.get(field), str) or not row[field]:
            raise ValueError(f"{what}: {field!r} must be a text")
    _check_shared(row)
    runtime = row.get("runtime_config")
    _expect(runtime, dict, "'runtime_config' must be an object")
    if runtime is not None:
        _only(runtime, _RUNTIME, "'runtime_config'")
        if runtime.get("image") is not None and runtime.get("compose") is not None:
            raise ValueError("'runtime_config' has both 'image' and 'compose'; give one of them")
    verifier = row.get("verifier")
    _expect(verifier, dict, "'verifier' must be a task")
    if verifier is not None:
        if verifies:
            raise ValueError("'verifier' has a verifier of its own, which HUD refuses")
        _check_v6(verifier, verifies=True)


def _check_shared(row: Mapping[str, Json]) -> None:
    """What both later generations have."""
    _expect(row.get("args"), dict, "'args' must be an object")
    _expect(row.get("slug"), str, "'slug' must be a text")
    _expect(row.get("agent_config"), dict, "'agent_config' must be an object")
    _expect(row.get("columns"), dict, "'columns' must be an object")
    calls = row.get("validation")
    _expect(calls, list, "'validation' must be a list of tool calls")
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls or ()):
        raise ValueError("'validation' must be a list of tool calls, each with a 'name'")


def _only(fields: Mapping[str, Json], allowed: tuple[str, ...], what: str) -> None:
    for key in fields:
        if key not in allowed:
            raise ValueError(
                f"{what} has no field {key!r}{nearest(key, allowed)} (known: {', '.join(allowed)})"
            )


def _texts(value: Json, what: str) -> None:
    if value is not None and not (isinstance(value, list) and all(isinstance(text, str) for text in value)):
        raise ValueError(f"{what} must be a list of texts")


def _expect(value: Json, kind: type, problem: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{problem}, found {value!r:.80}")


ROW_FORMAT = RowFormat(
    is_row=is_row,
    opening_of=opening_of,
    split_row=split_row,
    env_of=lambda row: NAME,
    owns_env=owns_env,
    key_of=key_of,
)
