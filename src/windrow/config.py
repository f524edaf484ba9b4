"""One typed run configuration: YAML files first, then flags and `--set a.b=c`, each value with where it came from.

Nothing is ignored: an unknown key, a wrong type or a value out of range is an error that names the key, the file and
line (or the flag), and the nearest right name. `${VAR}` stands for an environment variable; it is expanded when the
value is used and never written to a file.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from windrow.errors import UsageError
from windrow.records import Capture, Json

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class TasksConfig(_Section, frozen=True):
    path: str | None = None
    source: str | None = None
    split: str | None = None
    limit: Positive | None = None
    shuffle: int | None = None
    skip_invalid: bool = False
    map: dict[str, str] = {}


class Sampling(_Section, frozen=True, omit_defaults=True):
    """What may be asked of a model. A policy refuses what it cannot honour; `extra` goes into the request as it is."""

    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: int | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    max_tokens: Positive | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    reasoning_effort: str | None = None
    extra: dict[str, Json] | None = None


class LocalConfig(_Section, frozen=True):
    """How llama.cpp runs in this process: `parallel` episodes share the threads, each with its own context."""

    threads: Positive | None = None
    context_tokens: Positive = 4096
    parallel: Positive = 8


class PolicyConfig(_Section, frozen=True):
    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    sampling: Sampling = Sampling()
    call_retries: NotNegative = 5
    backoff_s: Annotated[float, msgspec.Meta(ge=0)] = 0.5
    probe: bool = True
    probe_timeout_s: Seconds = 20.0
    tool_calls: Literal["auto", "native", "hermes", "llama", "xml", "react", "fenced"] = "auto"
    local: LocalConfig = LocalConfig()


class EnvConfig(_Section, frozen=True):
    """An environment: its name (built in, `module:name`, or an entry point) and its settings."""

    name: str = "problem"
    settings: dict[str, Json] = {}


class AgentConfig(_Section, frozen=True):
    name: str = "chat"
    settings: dict[str, Json] = {}


class ScorerConfig(_Section, frozen=True):
    name: str
    weight: float = 1.0
    settings: dict[str, Json] = {}


class McpConfig(_Section, frozen=True):
    """An MCP server: a command that is started, or the URL of a streamable HTTP endpoint."""

    command: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None


class ToolConfig(_Section, frozen=True):
    """Where tools come from: a function, `module:name`, or an MCP server, with a session an episode or a shared one.

    `name` stands for the server in the behaviour fingerprint, in place of its command or URL.
    """

    function: str | None = None
    mcp: McpConfig | None = None
    name: str | None = None
    session: Literal["episode", "shared"] = "episode"
    start_timeout_s: Seconds = 60.0


class LimitsConfig(_Section, frozen=True):
    max_turns: Positive = 50
    max_episode_tokens: Positive | None = None
    max_tool_calls: NotNegative | None = None
    max_parse_errors: NotNegative = 2  # in a row, each told to the model; the next one ends the episode
    max_tool_result_chars: Positive = 65_536
    call_timeout_s: Seconds = 600.0
    tool_timeout_s: Seconds = 60.0
    score_timeout_s: Seconds = 60.0
    episode_timeout_s: Seconds | None = None
    close_timeout_s: Seconds = 10.0


class RunConfig(_Section, frozen=True):
    tasks: TasksConfig = TasksConfig()
    policy: PolicyConfig = PolicyConfig()
    env: EnvConfig = EnvConfig()
    agent: AgentConfig = AgentConfig()
    prompt: str | None = None
    scorers: list[ScorerConfig] | None = None
    tools: list[ToolConfig] = []
    allow_tools: list[str] = []
    deny_tools: list[str] = []
    samples: Positive = 1
    pass_: NotNegative = msgspec.field(default=0, name="pass")
    seeds: Literal["none", "id", "sample"] = "none"
    capture: Capture | None = None  # None: what the env or the policy says
    limits: LimitsConfig = LimitsConfig()
    concurrency: Positive | None = None  # None: what the policy bears, else 64
    retries: NotNegative = 1
    out: str | None = None
    lock: bool = True


# Every option that is a flag of the command and a keyword of the library, and the place it sets.
OPTIONS: dict[str, str] = {
    "tasks": "tasks.path",
    "source": "tasks.source",
    "split": "tasks.split",
    "limit": "tasks.limit",
    "shuffle": "tasks.shuffle",
    "skip_invalid": "tasks.skip_invalid",
    "map": "tasks.map",
    "model": "policy.model",
    "base_url": "policy.base_url",
    "api_key_env": "policy.api_key_env",
    "temperature": "policy.sampling.temperature",
    "top_p": "policy.sampling.top_p",
    "max_tokens": "policy.sampling.max_tokens",
    "call_retries": "policy.call_retries",
    "tool_calls": "policy.tool_calls",
    "env": "env",
    "agent": "agent",
    "prompt": "prompt",
    "scorers": "scorers",
    "tools": "tools",
    "allow_tools": "allow_tools",
    "deny_tools": "deny_tools",
    "samples": "samples",
    "pass_": "pass",
    "seeds": "seeds",
    "capture": "capture",
    "max_turns": "limits.max_turns",
    "max_episode_tokens": "limits.max_episode_tokens",
    "max_tool_calls": "limits.max_tool_calls",
    "call_timeout": "limits.call_timeout_s",
    "tool_timeout": "limits.tool_timeout_s",
    "score_timeout": "limits.score_timeout_s",
    "episode_timeout": "limits.episode_timeout_s",
    "concurrency": "concurrency",
    "retries": "retries",
    "out": "out",
    "lock": "lock",
}


_LISTS = ("scorers", "tools", "allow_tools", "deny_tools")  # a flag adds one of them, and is spelled so


class LoadedConfig(msgspec.Struct, frozen=True):
    """A configuration and, for each dotted key that was set, where: `run.yaml:12` or a flag."""

    run: RunConfig
    origins: dict[str, str]

    @property
    def forced_sampling(self) -> set[str]:
        """Sampling that a flag or keyword set, which a row's own sampling does not override."""
        prefix = "policy.sampling."
        return {
            key.removeprefix(prefix).partition(".")[0]
            for key, origin in self.origins.items()
            if key.startswith(prefix) and not _is_file(origin)
        }


def load_config(
    files: Sequence[str | Path] = (),
    options: Mapping[str, Any] | None = None,
    sets: Iterable[str] = (),
) -> LoadedConfig:
    """Files in order, later wins; then options (flags, keywords), then `--set` assignments."""
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    _read_files(files, tree, origins)
    for name, value in (options or {}).items():
        if name not in OPTIONS:
            raise UsageError(f"unknown option {name!r}{nearest(name, OPTIONS)}")
        if value is not None:
            flag = "--" + (name[:-1] if name in _LISTS else name.rstrip("_")).replace("_", "-")
            _assign(tree, OPTIONS[name], _shaped(OPTIONS[name], value), flag, origins)
    for assignment in sets:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {assignment!r}: expected KEY=VALUE, such as --set limits.max_turns=5")
        value = _shaped(key.strip(), _parse_scalar(text, assignment))
        _assign(tree, key.strip(), value, f"--set {key.strip()}", origins)
    for key, value in _leaves("", tree):
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{_origin(key, origins)}{key}: expected a finite number, found {value}")
    try:
        return LoadedConfig(msgspec.convert(tree, RunConfig), origins)
    except msgspec.ValidationError as problem:
        raise UsageError(_explain(str(problem), tree, origins)) from None


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every plain value under `key`, with its place as `_explain` spells it."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(f"{key}.{name}".removeprefix("."), item)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(f"{key}[{number}]", item)
    else:
        yield key, value


def as_tree(config: msgspec.Struct) -> dict[str, Any]:
    """The configuration as plain values, `${VAR}` unexpanded: what run.json keeps."""
    tree: dict[str, Any] = msgspec.to_builtins(config)
    return tree


_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\}")


def expand(value: Json, *, where: str) -> Json:
    """`value` with every `${VAR}` and `${VAR:default}` in its strings replaced; a missing variable is an error."""

    def variable(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        found = os.environ.get(name, default)
        if found is None:
            raise UsageError(f"{where}: the environment variable {name} is not set")
        return found

    if isinstance(value, str):
        return _VARIABLE.sub(variable, value)
    if isinstance(value, dict):
        return {key: expand(item, where=f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, where=where) for item in value]
    return value


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no name is near."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def parse_scorer(text: str) -> dict[str, Any]:
    """`NAME` or `NAME=WEIGHT`, as the flag has it."""
    name, equals, weight = text.rpartition("=")
    if not equals:
        return {"name": text}
    try:
        return {"name": name, "weight": float(weight)}
    except ValueError:
        raise UsageError(f"--scorer {text!r}: the weight after '=' must be a number") from None


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


def _is_file(origin: str) -> bool:
    return not origin.startswith("--")


def _shaped(key: str, value: Any) -> Any:
    """The short spellings: a name for an env, a path for the tasks, lists of texts for the scorers and the map."""
    if key in ("env", "agent") and isinstance(value, str):
        return {"name": value}
    if key == "tasks" and isinstance(value, str):
        return {"path": value}
    if key == "scorers" and isinstance(value, list | tuple):
        return [parse_scorer(item) if isinstance(item, str) else item for item in value]
    if key == "tools" and isinstance(value, list | tuple):
        return [parse_tool(item) if isinstance(item, str) else item for item in value]
    if key == "tasks.map" and isinstance(value, list | tuple):
        return parse_maps(value)
    return value


def _assign(tree: dict[str, Any], key: str, value: Any, origin: str, origins: dict[str, str]) -> None:
    *parents, last = key.split(".")
    node = tree
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise UsageError(f"{origin}: {parent} is not a section, so {key} cannot be set in it")
        node = child
    before = node.get(last)
    if not (isinstance(value, dict) and isinstance(before, dict)):
        node[last] = value
    elif key == "tasks.map" or before.get("name") == value.get("name"):
        node[last] = {**before, **value}
    else:
        node[last] = value
    origins.update(dict.fromkeys(_places(key, value), origin))


def _places(key: str, value: Any) -> Iterator[str]:
    """The dotted keys that are set when `key` is given `value`."""
    yield key
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _places(f"{key}.{name}", item)


def _merge(tree: dict[str, Any], data: dict[str, Any], *, top: bool = True) -> None:
    """Lay one file's mapping over another's; a section that names another env or agent takes its whole place."""
    for key, value in data.items():
        value = _shaped(key, value) if top else value
        before = tree.get(key)
        if not (isinstance(value, dict) and isinstance(before, dict)):
            tree[key] = value
        elif not top or value.get("name") in (None, before.get("name")):
            _merge(before, value, top=False)
        else:
            tree[key] = value


def _read_files(files: Sequence[str | Path], tree: dict[str, Any], origins: dict[str, str]) -> None:
    """Merge files into `tree`, later ones over earlier ones, each after the files that it extends."""

    def read(path: Path, within: tuple[Path, ...]) -> None:
        if path.resolve() in within:
            raise UsageError(f"{path}: 'extends' goes round in a circle")
        data, lines = _read_yaml(path)
        bases = data.pop("extends", None) or []
        bases = [bases] if isinstance(bases, str) else bases
        if not (isinstance(bases, list) and all(isinstance(base, str) for base in bases)):
            raise UsageError(f"{lines['extends']}: extends: expected a file or a list of files")
        lines.pop("extends", None)
        for base in bases:
            read(path.parent / base, (*within, path.resolve()))
        _merge(tree, data)
        origins.update(lines)

    for file in files:
        try:
            read(Path(file), ())
        except RecursionError:
            raise UsageError(
                f"{file}: a YAML anchor (&) holds itself, or the file is nested too deeply"
            ) from None


def _read_yaml(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The file's mapping, and for each dotted key in it `file:line`."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"cannot read the configuration {path}: {_reason(problem)}") from None
    except yaml.YAMLError as problem:
        raise UsageError(f"{path} is not valid YAML: {problem}") from None
    if data is None:
        return {}, {}
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected a mapping of settings, found {type(data).__name__}")
    lines: dict[str, str] = {}

    def visit(node: Any, prefix: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                dotted = f"{prefix}.{key.value}".removeprefix(".")
                line = f"{path}:{key.start_mark.line + 1}"
                if dotted in lines:
                    raise UsageError(f"{line}: {dotted} is set twice, first at {lines[dotted]}")
                lines[dotted] = line
                visit(value, dotted)
        elif isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                lines[f"{prefix}[{number}]"] = f"{path}:{item.start_mark.line + 1}"
                visit(item, f"{prefix}[{number}]")

    visit(node, "")
    return data, lines


def _parse_scalar(text: str, assignment: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise UsageError(f"--set {assignment!r}: the value is not valid YAML") from None


def _explain(problem: str, tree: dict[str, Any], origins: dict[str, str]) -> str:
    """msgspec's complaint in our words, with the place the value came from."""
    match = re.fullmatch(r"(.*?)(?: - at (`key` in )?`\$\.?(.*)`)?", problem, re.S)
    assert match is not None
    text, in_key, section = match.group(1), match.group(2), (match.group(3) or "").replace("[...]", "")
    if in_key:
        text = "keys must be text; put quotes around them"
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", text)
    if unknown:
        key = f"{section}.{unknown.group(1)}" if section else unknown.group(1)
        names = [field.encode_name for field in msgspec.structs.fields(_section_type(section))]
        where = _origin(key, origins)
        return f"{where}unknown key {key!r}{nearest(unknown.group(1), names)} (known: {', '.join(names)})"
    if text.startswith("Invalid enum value"):
        text += f" (known: {', '.join(_choices(section))})"
    return f"{_origin(section, origins)}{section or 'configuration'}: {text[:1].lower()}{text[1:]}"


def _section_type(section: str) -> type[msgspec.Struct]:
    """The struct that stands at a dotted place of RunConfig."""
    types: dict[str, type[msgspec.Struct]] = {
        "": RunConfig,
        "tasks": TasksConfig,
        "policy": PolicyConfig,
        "policy.sampling": Sampling,
        "policy.local": LocalConfig,
        "env": EnvConfig,
        "agent": AgentConfig,
        "limits": LimitsConfig,
        "tools": ToolConfig,
        "tools.mcp": McpConfig,
    }
    return types.get(re.sub(r"\[\d+\]", "", section), ScorerConfig)


def _choices(key: str) -> tuple[str, ...]:
    """The values that a key of a few fixed ones may have."""
    section, _, name = key.rpartition(".")
    fields = {field.encode_name: field for field in msgspec.structs.fields(_section_type(section))}
    return get_args(fields[name].type)


def _origin(key: str, origins: dict[str, str]) -> str:
    """Where `key`, something in it, or the nearest thing around it was set, as a prefix for a message."""
    inside = [origin for place, origin in origins.items() if place.startswith((f"{key}.", f"{key}["))]
    if key not in origins and inside:
        return f"{inside[-1]}: "
    while key:
        if key in origins:
            return f"{origins[key]}: "
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return ""


def _reason(problem: Exception) -> str:
    if isinstance(problem, OSError):
        return problem.strerror or str(problem)
    return "it is not UTF-8 text"
