"""A task of HUD's first generation, read from its row: the prompt, the MCP servers, what is called before and after.

Fields that hold objects may be JSON in a text, as Hugging Face data sets keep them. A tool call may be written short:

    {"name": "navigate", "arguments": {"url": "…"}}      {"navigate": {"url": "…"}}      {"setup": {"name": "navigate", "arguments": …}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from windrow.config import nearest, variables_in
from windrow.records import Json
from windrow.util.redaction import secrets_of_header

_AGENT = (
    "system_prompt",
    "allowed_tools",
    "disallowed_tools",
    "append_setup_output",
    "append_setup_tool",
    "response_tool_name",
    "initial_screenshot",
)
_SERVER = ("url", "headers", "command", "args", "env", "cwd", "transport", "type")
_TRANSPORTS = {"url": ("http", "streamable-http", "streamable_http"), "command": ("stdio",)}


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the harness makes, not the model."""

    name: str
    arguments: dict[str, Json] = {}


class Scenario(msgspec.Struct, frozen=True):
    """What a row of the second generation names: the server has a prompt and a resource of this id."""

    id: str
    arguments: dict[str, str]

    @property
    def name(self) -> str:
        return self.id.rpartition(":")[2]


class HudTask(msgspec.Struct, frozen=True, kw_only=True):
    """`servers` are as the row has them, `${VAR}` unexpanded. `allowed` None lets every tool through, `()` none."""

    prompt: str
    servers: dict[str, dict[str, Json]]
    setup: tuple[ToolCall, ...] = ()
    evaluate: tuple[ToolCall, ...] = ()
    system_prompt: str | None = None
    allowed: tuple[str, ...] | None = None
    disallowed: tuple[str, ...] = ()
    append_setup_output: bool = False
    response_tool: str | None = None
    scenario: Scenario | None = None


def read_task(row: Mapping[str, Json]) -> HudTask:
    """Return the task in a row; ValueError describes the problem with it."""
    prompt = row.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise ValueError("a HUD v4 row has a 'prompt', a text, beside its 'mcp_config'")
    agent = _object(row, "agent_config") or {}
    for key in agent:
        if key not in _AGENT:
            raise ValueError(
                f"'agent_config' has no setting {key!r}{nearest(key, _AGENT)} (known: {', '.join(_AGENT)})"
            )
    _object(row, "metadata")
    _calls(row, "integration_test_tool")
    allowed = _patterns(agent.get("allowed_tools"), "agent_config.allowed_tools")
    if allowed is None:
        allowed = _patterns(row.get("agent_tools"), "agent_tools")
    return HudTask(
        prompt=prompt,
        servers=_servers(row),
        setup=_calls(row, "setup_tool"),
        evaluate=_calls(row, "evaluate_tool"),
        system_prompt=_text(agent.get("system_prompt"), "agent_config.system_prompt")
        or _text(row.get("system_prompt"), "system_prompt"),
        allowed=allowed,
        disallowed=_patterns(agent.get("disallowed_tools"), "agent_config.disallowed_tools") or (),
        append_setup_output=_appends(agent),
        response_tool=_text(agent.get("response_tool_name"), "agent_config.response_tool_name"),
    )


def read_scenario(row: Mapping[str, Json]) -> HudTask:
    """Return the task in a row of the second generation that has an 'mcp_config'; ValueError describes the problem.

    Texts among the arguments are sent as they are and the others as JSON: MCP has no other arguments for prompts.
    """
    env, name = row["env"], row.get("scenario")
    if not isinstance(name, str) or not name:
        raise ValueError("a HUD v5 row that is to be played has a 'scenario', a text")
    agent = _object(row, "agent_config") or {}
    arguments = {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in (row.get("args") or {}).items()
    }
    return HudTask(
        prompt="",
        servers=_servers(row),
        system_prompt=_text(agent.get("system_prompt"), "agent_config.system_prompt"),
        allowed=_patterns(env.get("include"), "env.include"),
        disallowed=(*(_patterns(env.get("exclude"), "env.exclude") or ()), "_*"),
        scenario=Scenario(name if ":" in name else f"{env['name']}:{name}", arguments),
    )


def _appends(agent: Mapping[str, Json]) -> bool:
    """Whether one of the two names of the setting is true."""
    names = ("append_setup_output", "append_setup_tool")
    for key in names:
        if agent.get(key) is not None and not isinstance(agent[key], bool):
            raise ValueError(f"agent_config.{key} must be true or false, found {agent[key]!r:.80}")
    return any(agent.get(key) for key in names)


def _servers(row: Mapping[str, Json]) -> dict[str, dict[str, Json]]:
    config = _object(row, "mcp_config")
    if not config:
        raise ValueError("'mcp_config' names no server")
    for name, server in config.items():
        where = f"mcp_config.{name}"
        if not isinstance(server, dict):
            raise ValueError(f"{where} must be an object with a 'url' or a 'command', found {server!r:.80}")
        _check_server(server, where)
    return config


def _check_server(server: Mapping[str, Json], where: str) -> None:
    for key in server:
        if key not in _SERVER:
            raise ValueError(
                f"{where} has {key!r}{nearest(key, _SERVER)}, which is not heeded here (known: {', '.join(_SERVER)})"
            )
    kinds = [key for key in ("url", "command") if server.get(key)]
    if len(kinds) != 1 or not isinstance(server[kinds[0]], str):
        raise ValueError(f"{where} must have one of 'url' and 'command', a text")
    [kind] = kinds
    transport = server.get("transport") or server.get("type")
    if transport is not None and transport not in _TRANSPORTS[kind]:
        raise ValueError(
            f"{where}: the transport {transport!r:.40} is not spoken here; stdio and streamable HTTP are"
        )
    _texts(server.get("args"), f"{where}.args")
    _text(server.get("cwd"), f"{where}.cwd")
    for field, other in (("headers", "command"), ("env", "url"), ("args", "url"), ("cwd", "url")):
        if server.get(field) and kind == other:
            raise ValueError(f"{where}.{field} is of no use beside {other!r}")
    for field in ("headers", "env"):
        _check_values(server.get(field), f"{where}.{field}")


def _check_values(values: Json, where: str) -> None:
    """Refuse a row that holds a secret: records contain rows unchanged, so secrets must come from the environment."""
    if values is None:
        return
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise ValueError(f"{where} must be an object of texts")
    for name, value in values.items():
        if secrets_of_header(name, value) and value.strip() and not variables_in(value):
            raise ValueError(
                f"{where}.{name} holds a secret, which every record of the task would hold, too; write ${{VARIABLE}} and set that in the environment"
            )


def _calls(row: Mapping[str, Json], field: str) -> tuple[ToolCall, ...]:
    value = _decoded(row.get(field), field)
    if value is None:
        return ()
    return tuple(_call(call, field) for call in (value if isinstance(value, list) else [value]))


def _call(value: Json, field: str) -> ToolCall:
    call = _unfolded(value)
    if isinstance(call, dict) and "name" not in call and len(call) == 1:
        [(name, arguments)] = call.items()
        call = {"name": name, "arguments": arguments}
    arguments = call.get("arguments") if isinstance(call, dict) else None
    if (
        not isinstance(call, dict)
        or not isinstance(call.get("name"), str)
        or not isinstance(arguments or {}, dict)
    ):
        raise ValueError(
            f"{field!r} must be a tool call with 'name' and 'arguments', or a list of them, found {value!r:.120}"
        )
    return ToolCall(call["name"], arguments or {})


def _unfolded(value: Json) -> Json:
    """Return a call with its short forms written out; arguments that look like a call are one."""
    if not isinstance(value, dict):
        return value
    if "name" in value and "arguments" in value:
        arguments = value["arguments"]
        return {
            "name": value["name"],
            "arguments": _unfolded(arguments) if _is_call(arguments) else arguments,
        }
    if len(value) == 1:
        [(name, inner)] = value.items()
        if isinstance(inner, dict) and _is_call(inner):
            return {"name": name, "arguments": _unfolded(inner)}
    return value


def _is_call(value: Json) -> bool:
    if not isinstance(value, dict):
        return False
    if "name" in value and "arguments" in value:
        return True
    inner = next(iter(value.values())) if len(value) == 1 else None
    if not isinstance(inner, dict):
        return False
    return "name" in inner or (len(inner) == 1 and isinstance(next(iter(inner.values())), dict))


def _object(row: Mapping[str, Json], field: str) -> dict[str, Json] | None:
    value = _decoded(row.get(field), field)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{field!r} must be an object, found {value!r:.80}")
    return value


def _decoded(value: Json, field: str) -> Json:
    """Return a value, decoded if it is JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise ValueError(f"{field!r} is a text that is not JSON: {problem}") from None


def _patterns(value: Json, what: str) -> tuple[str, ...] | None:
    _texts(value, what)
    return None if value is None else tuple(value)


def _texts(value: Json, what: str) -> Sequence[str]:
    if value is not None and not (isinstance(value, list) and all(isinstance(text, str) for text in value)):
        raise ValueError(f"{what} must be a list of texts, found {value!r:.80}")
    return value or ()


def _text(value: Json, what: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{what} must be a text, found {value!r:.80}")
    return value
