"""NeMo Gym's own YAML configurations, given with `--config`: the data sets that their agents name, and their head server.

A configuration may chain others (`config_paths`), and a server may take over another one's settings (`_inherit_from`,
which replaces that server; `_copy` keeps it). What only their servers need is left to them, unread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from windrow.config.yamltext import NotYaml, yaml_value
from windrow.errors import UsageError
from windrow.integrations.nemo_gym.client import AGENTS, RESOURCES
from windrow.integrations.nemo_gym.env import NAME
from windrow.records import Json

KINDS = frozenset({AGENTS, RESOURCES, "responses_api_models", "environment_servers"})
CHAINED, INHERITS, COPIES = "config_paths", "_inherit_from", "_copy"
SPLITS = ("train", "validation", "benchmark")  # `example` data sets show what a row looks like
MAX_FILES = 100
HEAD_PORT = 11000

Sections = dict[str, Any]


def read_config(data: Mapping[str, Json], path: Path) -> dict[str, Json] | None:
    """Return what a configuration of theirs means here; None if it is none of theirs."""
    if CHAINED not in data and not any(_is_server(section) for section in data.values()):
        return None
    sections = _inherited(_chained(data, path, []), path)
    datasets, prompts = [], set()
    for agent, dataset in _datasets(sections):
        if dataset.get("type") not in SPLITS:
            continue
        datasets.append(_dataset(agent, dataset, path))
        prompts.add(dataset.get("prompt_config"))
    meaning: dict[str, Json] = {"datasets": datasets} if datasets else {}
    if len(prompts) > 1:
        raise UsageError(f"{path}: its data sets have different prompt_config, and a run has one prompt")
    if prompt := next(iter(prompts), None):
        meaning["prompt"] = str(_found(prompt, path))
    if isinstance(head := sections.get("head_server"), dict):
        address = f"http://{head.get('host', '127.0.0.1')}:{head.get('port', HEAD_PORT)}"
        meaning["agent"] = {"name": NAME, "settings": {"head": address}}
    return meaning


def _is_server(section: Json) -> bool:
    return isinstance(section, dict) and bool(section.keys() & {*KINDS, INHERITS, COPIES})


def _chained(data: Mapping[str, Json], path: Path, seen: list[Path]) -> Sections:
    """Return the sections of a configuration laid over those that it chains."""
    seen.append(path.resolve())
    if len(seen) > MAX_FILES:
        raise UsageError(f"{path}: more than {MAX_FILES} configurations are chained by {CHAINED}")
    chained = data.get(CHAINED) or []
    if not isinstance(chained, list) or not all(isinstance(name, str) for name in chained):
        raise UsageError(f"{path}: {CHAINED} must be a list of files")
    sections: Sections = {}
    for name in chained:
        base = _found(name, path)
        if base.resolve() not in seen:
            sections = _over(sections, _chained(_read(base), base, seen))
    merged: Sections = _over(sections, {key: value for key, value in data.items() if key != CHAINED})
    return merged


def _inherited(sections: Sections, path: Path) -> Sections:
    """Return the sections, each with what it inherits; a section that another one takes over is gone."""
    replaced: set[str] = set()

    def whole(name: str, below: tuple[str, ...]) -> Any:
        section = sections[name]
        source = section.get(INHERITS, section.get(COPIES)) if isinstance(section, dict) else None
        if source is None:
            return section
        if source not in sections and COPIES in section:
            return section  # a model server that another configuration has, as a rule
        if source not in sections or source in below:
            why = (
                "inherits from itself" if source in below else f"inherits from {source!r}, which is not there"
            )
            raise UsageError(f"{path}: {name} {why}; name the configuration that has it in {CHAINED}")
        if INHERITS in section:
            replaced.add(source)
        own = {key: value for key, value in section.items() if key not in (INHERITS, COPIES)}
        return _over(whole(source, (*below, source)), own)

    resolved = {name: whole(name, (name,)) for name in sections}
    return {name: section for name, section in resolved.items() if name not in replaced}


def _datasets(sections: Sections) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each data set with the name of its agent."""
    for agent, section in sections.items():
        kinds = section.get(AGENTS) if isinstance(section, dict) else None
        for settings in kinds.values() if isinstance(kinds, dict) else ():
            listed = settings.get("datasets") if isinstance(settings, dict) else None
            for dataset in listed if isinstance(listed, list) else ():
                if isinstance(dataset, dict):
                    yield agent, dataset


def _dataset(agent: str, dataset: Mapping[str, Any], path: Path) -> dict[str, Json]:
    name, file = dataset.get("name"), dataset.get("jsonl_fpath")
    if not isinstance(file, str):
        raise UsageError(f"{path}: data set {name!r:.80} of {agent} has no jsonl_fpath")
    meaning = {"path": str(_found(file, path, needed=False)), "split": dataset["type"], "agent": agent}
    if name is not None:
        meaning["source"] = name
    if dataset.get("num_repeats") is not None:
        meaning["num_repeats"] = dataset["num_repeats"]
    return meaning


def _found(name: str, path: Path, *, needed: bool = True) -> Path:
    """Return a file that a configuration names: from here, or from a folder above the configuration."""
    for root in (Path(), *path.resolve().parents):
        if (root / name).exists():
            return root / name
    if needed:
        raise UsageError(f"{path}: there is no file {name!r}, neither from here nor from a folder above it")
    return Path(name)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml_value(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, NotYaml) as problem:
        raise UsageError(f"cannot read the configuration {path}: {problem}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected a mapping of settings")
    return data


def _over(below: Any, above: Any) -> Any:
    """Return mappings merged key by key; anything else is replaced."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return {**below, **{key: _over(below.get(key), value) for key, value in above.items()}}
