"""From files, options and assignments to one checked configuration, each value with where it came from."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from windrow.config.explain import explain, origin_of
from windrow.config.options import OPTIONS, flag, shaped
from windrow.config.sections import CallConfig, RunConfig, TrustConfig
from windrow.config.yamltext import NotYaml, yaml_value
from windrow.errors import UsageError
from windrow.registry import declared, load
from windrow.util.spelling import nearest

# msgspec looks at a type when it first converts to it, and crashes the interpreter if two threads do so at once.
_converting = threading.Lock()


class LoadedConfig(msgspec.Struct, frozen=True):
    """A configuration and, for each dotted key that was set, where: `run.yaml:12` or a flag.

    `trust` is no part of the run, so that no run directory can hold it or bring it along.
    """

    run: RunConfig
    origins: dict[str, str]
    trust: TrustConfig = TrustConfig()

    @property
    def forced_sampling(self) -> set[str]:
        """Sampling that a flag or keyword set, which a row's own sampling does not override."""
        return self._forced("policy.sampling.")

    @property
    def forced_limits(self) -> set[str]:
        """Limits that a flag or keyword set, which a row's own do not override."""
        return self._forced("limits.")

    def _forced(self, prefix: str) -> set[str]:
        return {
            key.removeprefix(prefix).partition(".")[0]
            for key, origin in self.origins.items()
            if key.startswith(prefix) and not _is_file(origin)
        }


def load_config(
    files: Sequence[str | Path] = (),
    options: Mapping[str, Any] | None = None,
    sets: Iterable[str] = (),
    *,
    base: Mapping[str, Any] | None = None,
) -> LoadedConfig:
    """Files in order, later wins; then options (flags, keywords), then `--set` assignments; all laid over `base`."""
    tree: dict[str, Any] = copy.deepcopy(dict(base or {}))
    tree.pop("trust", None)  # `base` is what a run has kept, and no run says what is trusted
    origins: dict[str, str] = {}
    _read_files(files, tree, origins)
    for name, value in (options or {}).items():
        if name not in OPTIONS:
            raise UsageError(f"unknown option {name!r}{nearest(name, OPTIONS)}")
        if value is not None:
            _assign(tree, OPTIONS[name], shaped(OPTIONS[name], value), flag(name), origins)
    for assignment in sets:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {assignment!r}: expected KEY=VALUE, such as --set limits.max_turns=5")
        value = shaped(key.strip(), _parse_scalar(text, assignment))
        _assign(tree, key.strip(), value, f"--set {key.strip()}", origins)
    agent = tree.get("agent")
    if isinstance(agent, dict) and agent.get("name") in (agent_envs := declared("agent_envs")):
        tree.setdefault("env", {"name": agent_envs[agent["name"]]})
    for key, value in _leaves("", tree):
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{origin_of(key, origins)}{key}: expected a finite number, found {value}")
        if not _is_text(key) or (isinstance(value, str) and not _is_text(value)):
            raise UsageError(f"{origin_of(key, origins)}{key!r:.200}: not UTF-8 text")
    try:
        with _converting:
            call = msgspec.convert(tree, CallConfig)
            return LoadedConfig(call.run, origins, call.trust)
    except msgspec.ValidationError as problem:
        raise UsageError(explain(str(problem), tree, origins)) from None


def _is_text(text: str) -> bool:
    """Whether a file can hold it: what comes from a shell or an escape may be half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value and _is_text(value)


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every plain or empty value under `key`, with its place as `explain` spells it."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _leaves(f"{key}.{name}".removeprefix("."), item)
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            yield from _leaves(f"{key}[{number}]", item)
    else:
        yield key, value


def _is_file(origin: str) -> bool:
    return not origin.startswith("--")


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
    elif key == "tasks.map" or before.get("name") in (None, value.get("name")):
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
        value = shaped(key, value) if top else value
        before = tree.get(key)
        if not (isinstance(value, dict) and isinstance(before, dict)):
            tree[key] = value
        elif not top or before.get("name") is None or value.get("name") in (None, before.get("name")):
            _merge(before, value, top=False)
        else:
            tree[key] = value


def _read_files(files: Sequence[str | Path], tree: dict[str, Any], origins: dict[str, str]) -> None:
    """Merge files into `tree`, later ones over earlier ones, each after the files that it extends."""

    def read(path: Path, within: tuple[Path, ...]) -> None:
        if path.resolve() in within:
            raise UsageError(f"{path}: 'extends' goes round in a circle")
        data, lines = _read_yaml(path)
        if (foreign := _of_another_system(data, path)) is not None:
            foreign["datasets"] = [*(tree.get("datasets") or []), *foreign.get("datasets", [])]
            _merge(tree, foreign)
            origins.update({place: str(path) for key in foreign for place in _places(key, foreign[key])})
            return
        bases = data.pop("extends", None) or []
        bases = [bases] if isinstance(bases, str) else bases
        if not (isinstance(bases, list) and all(map(_is_path, bases))):
            raise UsageError(f"{lines.get('extends', path)}: extends: expected a file or a list of files")
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


def _of_another_system(data: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """What a configuration of another system means here; its data sets join those of the files before it."""
    if not data.keys() - RunConfig.__struct_fields__:
        return None
    meanings = (load("config format", target)(data, path) for target in declared("config_formats").values())
    return next((meaning for meaning in meanings if meaning is not None), None)


def _read_yaml(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The file's mapping, and for each dotted key in it `file:line`."""
    lines: dict[str, str] = {}
    try:
        data = yaml_value(path.read_text(encoding="utf-8"), lambda node: _note_lines(node, "", path, lines))
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"cannot read the configuration {path}: {_reason(problem)}") from None
    except NotYaml as problem:
        raise UsageError(f"{path} is not valid YAML: {problem}") from None
    if data is None:
        return {}, {}
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected a mapping of settings, found {type(data).__name__}")
    return data, lines


def _note_lines(node: Any, prefix: str, path: Path, lines: dict[str, str]) -> None:
    if node.id == "mapping":
        for key, value in node.value:
            dotted = f"{prefix}.{key.value}".removeprefix(".")
            line = f"{path}:{key.start_mark.line + 1}"
            if dotted in lines:
                raise UsageError(f"{line}: {dotted} is set twice, first at {lines[dotted]}")
            lines[dotted] = line
            _note_lines(value, dotted, path, lines)
    elif node.id == "sequence":
        for number, item in enumerate(node.value):
            lines[f"{prefix}[{number}]"] = f"{path}:{item.start_mark.line + 1}"
            _note_lines(item, f"{prefix}[{number}]", path, lines)


def _parse_scalar(text: str, assignment: str) -> Any:
    try:
        return yaml_value(text)
    except NotYaml:
        raise UsageError(f"--set {assignment!r:.200}: the value is not valid YAML") from None


def _reason(problem: Exception) -> str:
    if isinstance(problem, OSError):
        return problem.strerror or str(problem)
    return "it is not UTF-8 text"
